"""Determine which size word was overwritten if a walk over chunks reaches an invalid header.

There are two candidates: the size word of that header, and the size word of the chunk before it,
because a wrong size moves the walk into the middle of a block. The size word of the chunk before is
assumed to be right, unless one of these contradicts it:

- a chain of sound chunks starts inside the chunk and passes the invalid header
- a free chunk's copy of its size gives another size
- it has flags that no chunk of this arena has
- it leaves too little space for a block before the next sound chunk

The content of a word alone proves nothing. The word 0x31 is a common size word, and also the text
"1", and text may fill a block up to the next header. If text may end in the first byte of the size
word of the chunk before, memory is searched for a pointer to the block with the invalid header.
Such a pointer shows that a block really starts there. (malloc/malloc.c of glibc 2.26 to 2.43,
struct malloc_chunk)"""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.glibc.arenas import GlibcSpan
from findleaks.allocators.glibc.layout import FLAG_BITS, NON_MAIN_ARENA, PREV_INUSE, measure_fencepost
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

HOPS = 24  # number of consecutive sound chunks that prove a position if the true start is unknown
SEARCH_BYTES = 1 << 18  # bytes after a header that are searched for the true end of its chunk
MAX_JUDGED = 64  # invalid headers of one instance that are examined; further headers are not
MAX_SEARCHED = 4  # number of these headers for which all memory is searched for a pointer


class Verdict(NamedTuple):
    """The chunk whose size word was overwritten."""

    chunk: int
    # the size word before it was overwritten, if the memory behind it shows that
    expected: Optional[int]
    what: str  # a phrase for the user


class Judge:
    """Examines the headers at which the walks of one instance stop."""

    def __init__(self, memory: Memory, engine: Engine) -> None:
        self.memory = memory
        self.engine = engine
        self._judgements_left = MAX_JUDGED
        self._searches_left = MAX_SEARCHED

    def judge(self, span: GlibcSpan, before: int, chunk: int, end: int) -> Verdict:
        """Return which size word is wrong. `chunk` is the invalid header, `before` the chunk that
        ends there according to its size (0 if there is none), and `end` the address at which chunks
        are sound again."""
        self._judgements_left -= 1
        if self._judgements_left < 0:
            return self._own(chunk, None)
        head = self.memory.word(before + self.memory.size) if before else None
        if head is None:
            return self._own(chunk, self._size_word(span, chunk, end))
        found = self._passed_by(span, before, chunk) or self._free_size(span, before, chunk)
        if found is not None:
            return self._earlier(before, chunk, found)
        if self._free_size(span, chunk, chunk + 2 * self.memory.size) is None:
            nearest = self._nearest(span, chunk, end)
            unlikely = head & FLAG_BITS & ~PREV_INUSE & ~_arena_flag(span)
            unlikely = unlikely or (not head & PREV_INUSE and not self._behind_free(span, before))
            if unlikely or (nearest and nearest - chunk < 4 * self.memory.size):
                return self._earlier(before, chunk, nearest - before | PREV_INUSE | _arena_flag(span) if nearest else None)
            doubt = nearest and self._text_into(before, head, nearest - before)
            if doubt and not self._is_referred(chunk + 2 * self.memory.size):
                return self._either(before, head, chunk)
        return self._own(chunk, self._size_word(span, chunk, end))

    def _own(self, chunk: int, expected: Optional[int]) -> Verdict:
        return self._verdict(chunk, "which is impossible at this place", expected)

    def _earlier(self, before: int, chunk: int, expected: Optional[int]) -> Verdict:
        return self._verdict(before, f"which leads to {chunk:#x}, where no block begins", expected)

    def _verdict(self, chunk: int, why: str, expected: Optional[int]) -> Verdict:
        was = f"; the following memory shows that it was {expected:#x}" if expected is not None else ""
        return Verdict(chunk, expected, f"{self._word(chunk)}, {why}{was}")

    def _either(self, before: int, head: int, chunk: int) -> Verdict:
        what = f"{self._word(chunk)}, which is impossible at this place; or no block begins there, and the size word of the block at "
        what += f"{before + 2 * self.memory.size:#x}, which is {head:#x} and leads there, was overwritten. "
        what += "It cannot be determined which of the two was overwritten"
        return Verdict(chunk, None, what)

    def _word(self, chunk: int) -> str:
        """Describe a size word: 'the size word of the block at 0x… is 0x31313131 ("1111")', with
        its text."""
        memory = self.memory
        head = memory.word(chunk + memory.size) or 0
        raw = head.to_bytes(memory.size, memory.arch.byteorder)
        text = f' ("{raw.decode("ascii")}")' if all(32 <= byte < 127 for byte in raw) else ""
        return f"the size word of the block at {chunk + 2 * memory.size:#x} is {head:#x}{text}"

    def _passed_by(self, span: GlibcSpan, before: int, chunk: int) -> Optional[int]:
        """Return the true size word of `before` if it is too large, that is, if a chain of sound
        chunks begins inside `before` and has no chunk at `chunk`."""
        memory, word = self.memory, self.memory.size
        for real in range(before + 4 * word, min(chunk, before + SEARCH_BYTES), 2 * word):
            head = memory.word(real + word) or 0
            fits = head & PREV_INUSE or memory.word(real) == real - before
            if head > 4 * word and fits and is_chain_sound(memory, real, span, chunk):
                return real - before | PREV_INUSE | (_arena_flag(span) if head & PREV_INUSE else 0)
        return None

    def _free_size(self, span: GlibcSpan, chunk: int, start: int) -> Optional[int]:
        """Return the size word of `chunk` if it is free. In this case, its size is repeated in a
        later word, at `start` or above."""
        memory, word = self.memory, self.memory.size
        for base, words in memory.scan(start, min(chunk + SEARCH_BYTES, span.stop + 2 * word)):
            for index in range(-((base - chunk) // word) % 2, len(words) - 1, 2):
                real = base + index * word
                if words[index] == real - chunk >= 4 * word and not words[index + 1] & PREV_INUSE and words[index + 1] > 4 * word:
                    if is_chain_sound(memory, real, span):
                        return real - chunk | PREV_INUSE
        return None

    def _nearest(self, span: GlibcSpan, chunk: int, end: int) -> int:
        """Return the first address at which chunks are sound again, if the chunk before that
        address is in use; 0 if unknown."""
        after = self.memory.word(end + self.memory.size)
        if after is None or not after & PREV_INUSE or end == span.end:
            return 0
        return find_sound(self.memory, chunk + 2 * self.memory.size, span) or end

    def _size_word(self, span: GlibcSpan, chunk: int, end: int) -> Optional[int]:
        """Return the original size word of `chunk`, derived from the copy of its size or from the
        next sound chunk."""
        free = self._free_size(span, chunk, chunk + 4 * self.memory.size)
        nearest = 0 if free is not None else self._nearest(span, chunk, end)
        return nearest - chunk | PREV_INUSE | _arena_flag(span) if nearest - chunk >= 4 * self.memory.size else free

    def _behind_free(self, span: GlibcSpan, chunk: int) -> bool:
        """Return whether the header marks the chunk before it as free, and the copy of that chunk's
        size is right."""
        memory, word = self.memory, self.memory.size
        size = memory.word(chunk) or 0
        if not 4 * word <= size <= chunk - span.first:
            return False
        return (memory.word(chunk - size + word) or 0) & ~FLAG_BITS == size

    def _text_into(self, before: int, head: int, size: int) -> bool:
        """Whether text or its terminating 0 overwrote the lowest bytes of `head`, while the other
        bytes fit `size`.

        Example on x86-64: the text "…AAAA" ends one byte too far, so the size word 0x531 became
        0x541. The last 4 bytes before the size word and its first byte are text, and 0x541 >> 8 ==
        0x530 >> 8."""
        memory, word = self.memory, self.memory.size
        words = memory.words(before, 2)
        if words is None or memory.arch.byteorder != "little":
            return False
        data = b"".join(value.to_bytes(word, "little") for value in words)
        if not all(32 <= byte < 127 for byte in data[word - 4 : word + 1]):
            return False
        written = next((index for index in range(word) if not 32 <= data[word + index] < 127), word)
        written += written < word and not data[word + written]
        return head >> 8 * written == size >> 8 * written

    def _is_referred(self, address: int) -> bool:
        """Whether a word of writable memory points to `address`."""
        self._searches_left -= 1
        if self._searches_left < 0:
            return False
        target = self.memory.target
        for region in (one for one in target.regions() if one.readable and one.writable):
            for piece in nonzero_pieces(target, region.start, region.end):
                if target.is_interrupted():
                    raise Interrupted
                if self.engine.search(piece, address, address + 1):
                    return True
        return False


def is_sound(memory: Memory, chunk: int, span: GlibcSpan) -> bool:
    """Return whether the header of the chunk is valid in this span."""
    head = memory.word(chunk + memory.size)
    if head is None or (chunk + 2 * memory.size) % span.arena.layout.align:
        return False
    size = head & ~FLAG_BITS
    return 4 * memory.size <= size <= span.stop - chunk and size % (2 * memory.size) == 0


def find_sound(memory: Memory, start: int, span: GlibcSpan) -> Optional[int]:
    """Return the first address from `start` on at which HOPS consecutive chunks are sound, or a
    shorter chain reaches the top. The walk resumes there after corruption, or after memory that
    another caller of sbrk got."""
    word, align = memory.size, span.arena.layout.align
    flags = FLAG_BITS & ~_arena_flag(span)
    for base, words in memory.scan(start, span.stop + 2 * word):
        for index, head in enumerate(words):
            if head & flags == PREV_INUSE and head > 4 * word:
                chunk = base + (index - 1) * word
                if start <= chunk <= span.stop and (chunk + 2 * word) % align == 0 and is_chain_sound(memory, chunk, span):
                    return chunk
    return None


def is_chain_sound(memory: Memory, chunk: int, span: GlibcSpan, avoid: int = 0) -> bool:
    """Return whether HOPS consecutive chunks from `chunk` on are sound. With `avoid`, chunks are
    counted only above that address, and no chunk may start at it."""
    word = memory.size
    others = FLAG_BITS & ~PREV_INUSE & ~_arena_flag(span)
    hops = 0
    while hops < HOPS:
        if chunk == span.stop:
            return True
        if chunk == avoid or chunk > span.stop or measure_fencepost(memory, chunk, span.arena.layout.align):
            return avoid < chunk < span.stop
        head = memory.word(chunk + word)
        if head is None or not is_sound(memory, chunk, span) or head & others:
            return False
        size = head & ~FLAG_BITS
        after = memory.words(chunk + size, 2)
        if after is None or (not after[1] & PREV_INUSE and after[0] != size):
            return False
        chunk += size
        hops += chunk > avoid
    return True


def _arena_flag(span: GlibcSpan) -> int:
    """Return the flag that chunks in use of this arena have in addition to PREV_INUSE."""
    return NON_MAIN_ARENA if span.arena.number else 0
