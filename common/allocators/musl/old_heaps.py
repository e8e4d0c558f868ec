"""Find oldmalloc's memory: runs of chunks (from the break, mappings, and ld.so), and mapped
chunks.

The psize of the first chunk of a run, and the csize of the last one, are the number 1: size 0, in
use. Between them, the psize of each chunk repeats the csize of the chunk before it, including the
in-use bit.

A mapped chunk is one alignment into a page. Its psize is the number of bytes before it, and its
csize the number of the other bytes of its mapping. Both are even. No list contains runs or mapped
chunks, so every page of memory without an owner is searched."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.mappings import MappedChunk, find_unclaimed
from findleaks.allocators.memory import Memory
from findleaks.allocators.musl.engine import DIFFERS, ENDS, MORE, walk_tags
from findleaks.allocators.musl.layout import Old
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.arch import Words
from findleaks.target.base import Piece, Range, Target
from findleaks.target.elf import PT_LOAD
from findleaks.target.modules import module_headers
from findleaks.target.ranges import intersection, nonzero_pieces

PAGE = 4096  # the least page size
_RESYNC = 1 << 20  # bytes after a chunk of corrupt size that are searched for the next chunk
LOOKED_AT = 64  # pages that are examined after a header whose size extends beyond the mapping
PAGES = 256  # pages whose first words are read at once; most are inside an earlier chunk
_SURE = 16  # number of consecutive sound chunks that cannot be a coincidence
MAX_BLOCKS_READ = 1 << 13  # the largest number of blocks that one call reads
NO_MEMORY = -1  # a reason why a walk ended, in addition to the engine's codes
_MOST_DAMAGE = 64  # after this number of corrupt chunks, the rest of a run is ignored


class Part(NamedTuple):
    """Up to some thousands of adjacent blocks. Blocks are stored in parts because one long array
    would be copied each time it grows."""

    starts: array[int]
    sizes: array[int]
    states: bytearray


@dataclass
class Segment:
    """A run of chunks [start, end)."""

    start: int
    end: int
    label: str
    count: int = 0
    parts: list[Part] = field(default_factory=list)  # its blocks; no part is empty
    problems: list[Problem] = field(default_factory=list)  # problems of its headers

    def add(self, starts: array[int], sizes: array[int], states: bytearray) -> None:
        """Append blocks."""
        if starts:
            self.parts.append(Part(starts, sizes, states))
            self.count += len(starts)

    def add_one(self, start: int, size: int, state: State) -> None:
        self.add(array("Q", (start,)), array("Q", (size,)), bytearray((state,)))

    def walk(self, blocks: Blocks) -> None:
        for part in self.parts:
            blocks.append(*part)

    def last(self) -> tuple[int, int, int]:
        """Return (start, size, state) of the last block. There must be one."""
        starts, sizes, states = self.parts[-1]
        return starts[-1], sizes[-1], states[-1]

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        for part in self.parts:
            yield from zip(*part)

    def at(self, address: int) -> int:
        """Return the start of the last block that starts at or below `address`, or 0."""
        below = bisect_right([part.starts[0] for part in self.parts], address) - 1
        if below < 0:
            return 0
        starts = self.parts[below].starts
        return starts[bisect_right(starts, address) - 1]


def find_heaps(memory: Memory, engine: Engine, layout: Old, taken: Sequence[Range]) -> tuple[list[Segment], list[MappedChunk]]:
    """Return all runs and all mapped chunks, each ascending."""
    segments: list[Segment] = []
    mapped: list[MappedChunk] = []
    files = [data for image in find_images(memory.target) for data in _segments(memory.target, image)]
    for free in find_unclaimed(memory.target, [*taken, *files]):
        _search(memory, engine, layout, free, segments, mapped)
    for data in files:
        segments += _list_donated(memory, engine, layout, data)
    kept: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: segment.start):
        if segment.count and (not kept or segment.start >= kept[-1].end):
            kept.append(segment)
    return kept, sorted(mapped)


def _segments(target: Target, image: Image) -> Sequence[Range]:
    """Return the data inside the segments of the file. Outside of them there may be other memory:
    the gaps between ld.so's segments are up to 64 KiB on most machines, and the kernel may have
    mapped a heap there."""
    module, page = image.module, target.arch.page
    head = module_headers(target, module)
    if head is None:
        return image.data
    loads = [one for one in head[1] if one.type == PT_LOAD and one.memsz]
    parts = (Range(one.vaddr // page * page + module.bias, -(-(one.vaddr + one.memsz) // page) * page + module.bias) for one in loads)
    return intersection(image.data, parts)


def _search(memory: Memory, engine: Engine, layout: Old, free: Range, segments: list[Segment], mapped: list[MappedChunk]) -> None:
    """Find the runs and mapped chunks that begin at a page of `free`, ascending. Skip pages inside
    runs and chunks already found."""
    header, align = layout.overhead, layout.align
    start = -(-free.start // PAGE) * PAGE
    skip = start
    for piece in nonzero_pieces(memory.target, start, free.end):
        if memory.target.is_interrupted():
            raise Interrupted
        at, end = -(-piece.address // PAGE) * PAGE, piece.address + len(piece.data)
        while max(at, skip) < end:
            at = max(at, -(-skip // PAGE) * PAGE)
            pages = range(at, min(at + PAGES * PAGE, end), PAGE)
            at += PAGES * PAGE
            data, _ = engine.gather((piece,), array("Q", [page + align - header for page in pages]), header)
            words = engine.arch.words(data)
            for page, psize, csize in zip(pages, words[::2], words[1::2]):
                if page < skip or csize < align:
                    continue
                if psize == 1 and csize & (align - 2) == 0:
                    segment = walk(memory, engine, layout, page, page + align - header, free.end, "main")
                    if segment is not None:
                        segments.append(segment)
                        skip = segment.end
                elif psize == align - header and (psize + csize) % PAGE == 0:
                    one = _read_mapped_chunk(memory, layout, page, csize, free.end)
                    if one is not None:
                        mapped.append(one)
                        skip = one.end


def _read_mapped_chunk(memory: Memory, layout: Old, base: int, csize: int, limit: int) -> Optional[MappedChunk]:
    """Return the mapped chunk at a page, or None.

    If aligned memory was requested, the block begins further inside the mapping, after a second
    header. realloc() updates only the second header. If the size in the first header extends beyond
    the mapping, the second header is searched for in the first LOOKED_AT pages."""
    header, align = layout.overhead, layout.align
    length = csize + align - header
    reach = base + length if base + length <= limit else min(limit, base + LOOKED_AT * PAGE)
    offsets = [1 << shift for shift in range(align.bit_length(), PAGE.bit_length() - 1)]
    for offset in [*offsets, *range(PAGE, min(reach - base, 1 << 30), PAGE)]:
        words = memory.words(base + offset - header, 2)
        if words is None:
            break
        psize, rest = words
        if psize == offset - header and not rest & 1 and (psize + rest) % PAGE == 0 and rest >= align and base + psize + rest <= limit:
            return MappedChunk(base, base + offset - header, base + psize + rest, rest - header)
    if base + length > limit:
        return None
    return MappedChunk(base, base + align - header, base + length, csize - header)


def _list_donated(memory: Memory, engine: Engine, layout: Old, data: Range) -> Iterator[Segment]:
    """Yield runs in the gaps of a loaded file's data (reclaim_gaps in ldso/dynlink.c). Each is in
    one page of the machine, and may begin wherever a chunk can."""
    skip, page = 0, memory.target.arch.page
    for piece in nonzero_pieces(memory.target, data.start, data.end):
        for chunk in engine.search(piece, 1, 2):
            if chunk < skip or (chunk + layout.overhead) % layout.align:
                continue
            page_end = -(-(chunk + 1) // page) * page
            segment = walk(memory, engine, layout, chunk, chunk, min(page_end, data.end), "donated")
            if segment is not None and not segment.problems:
                skip = segment.end
                yield segment


def walk(memory: Memory, engine: Engine, layout: Old, start: int, chunk: int, limit: int, label: str) -> Optional[Segment]:
    """Walk the run that begins at `start`, with the first header at `chunk`, and ends before
    `limit`. Return None if there is no such run. A chunk with an impossible size is skipped if the
    header of a later chunk leads back to it."""
    header = layout.overhead
    made = Segment(start, chunk, label)
    reader = _Words(memory, chunk, limit)
    at, before, damage = chunk, 1, 0
    while True:
        piece, code = reader.piece(at), NO_MEMORY
        if piece is not None:
            read = walk_tags(engine, piece, at, before, limit, min(MAX_BLOCKS_READ, (limit - at) // layout.align + 1))
            made.add(read.starts, read.sizes, read.states)
            at, before, code = read.chunk, read.before, read.code
        if code == MORE:
            continue
        if code == ENDS:
            made.end = at + header
            return made if made.count else None
        damage += 1
        if code == DIFFERS:
            psize, csize = reader.pair(at) or (0, 0)
            if made.count < 2 and label == "main" and not (csize & (layout.align - 2) == 0 and made.count):
                return None
            _mismatch(made, at, before, psize, memory.size)
            if damage <= _MOST_DAMAGE:
                before = psize
                continue
        # The size is corrupt, or memory is missing. Find where the chunks continue.
        made.end = at
        if made.count < 2:
            return None
        after = _resync(reader, layout, at, limit) if code != NO_MEMORY and damage <= _MOST_DAMAGE else None
        if after is None:
            what = f"the chunk at {at:#x} has an impossible size" if code != NO_MEMORY else f"memory is missing at {at:#x}"
            damaged = Range(at, at + header) if code != NO_MEMORY else None
            made.problems.append(Problem(at, f"{what}: the blocks after it are not read", code != NO_MEMORY, damaged))
            return made
        _overrun(memory, made, layout, at, *after)
        at, before = after


def _overrun(memory: Memory, made: Segment, layout: Old, at: int, place: int, before: int) -> None:
    """Report that the headers from `at` to the last one before `place` were overwritten, and append
    their blocks. `before`: the psize in the header at `place`."""
    header = layout.overhead
    _, size, state = made.last()
    # The first word of the header belongs to the block before, and may be intact.
    mine = memory.word(at) == (size + header | (state == State.IN_USE))
    # The chunk right before `place` is not `at` if its header was overwritten, too.
    lost = place - (before & -2)
    if lost == at:
        what = f"the header of the chunk at {at:#x} was overwritten; the next one, at {place:#x}, gives its size"
    else:
        what = f"the headers of the chunks at {at:#x} to {lost:#x} were overwritten; the chunk at {place:#x} is the first sound one"
        made.add_one(at + header, lost - at - header, State.IN_USE)
    expected = before if mine and lost == at else None
    damaged = Range(at + memory.size if mine else at, lost + header)
    made.problems.append(Problem(at, f"{what}: the block before it overran", True, damaged, expected))
    made.add_one(lost + header, place - lost - header, State.IN_USE if before & 1 else State.FREE)


def _mismatch(made: Segment, at: int, before: int, psize: int, word: int) -> None:
    """Report that csize differs from the next chunk's psize. In this case, free() crashes on
    purpose (__bin_chunk)."""
    block, size, _ = made.last() if made.count else (at, 0, 0)
    what = f"the block {block:#x} ({size:,} bytes) was overrun: behind its end is {psize:#x}, not a copy of its size, {before:#x}"
    made.problems.append(Problem(at, f"{what}; free() of this block would crash", True, Range(at, at + word), before))


def _resync(reader: _Words, layout: Old, at: int, limit: int) -> Optional[tuple[int, int]]:
    """Return (header, psize) of the chunk that begins psize bytes after `at`. If there is none,
    several headers were overwritten. In this case, return the first chunk that many sound chunks
    follow, and whose preceding chunk, by its psize, begins above `at`."""
    beyond: Optional[tuple[int, int]] = None
    for place in range(at + layout.align, min(at + _RESYNC, limit - layout.overhead), layout.align):
        header = reader.pair(place)
        if header is None:
            break
        psize, csize = header
        size = psize & -2
        if not layout.align <= size <= place - at or (psize | csize) & (layout.align - 2):
            continue
        if size == place - at:
            if _sound(reader, place, 1):
                return place, psize
        elif beyond is None and size < place - at - layout.align and _sound(reader, place, _SURE):
            beyond = place, psize
    return beyond


def _sound(reader: _Words, at: int, count: int) -> bool:
    """Return whether the sizes of `count` chunks from `at` on are repeated after the chunks. If the
    run ends earlier, only its chunks are checked."""
    header = reader.pair(at)
    for _ in range(count):
        if header is None:
            return False
        csize = header[1]
        if csize == 1:
            return True
        at += csize & -2
        if not csize & -2 or at >= reader.limit:
            return False
        header = reader.pair(at)
        if header is None or header[0] != csize:
            return False
    return True


class _Words:
    """Memory from `start` to `limit` as words, one piece at a time."""

    def __init__(self, memory: Memory, start: int, limit: int) -> None:
        self._memory = memory
        self.limit = limit
        self._piece = Piece(start, memoryview(b""))
        self._words: Words = self._piece.data

    def piece(self, at: int) -> Optional[Piece]:
        """Return the piece that contains the header at `at`, or None if it is unreadable."""
        size = self._memory.size
        if not self._piece.address <= at <= self._piece.address + len(self._piece.data) - 2 * size:
            found = next(iter(self._memory.target.pieces(at, min(self.limit, at + (16 << 20)))), None)
            data = found.data if found is not None and found.address == at else memoryview(b"")
            self._piece = Piece(at, data[: len(data) // size * size])
            self._words = self._memory.arch.words(self._piece.data)
        return self._piece if len(self._words) > 1 else None

    def pair(self, at: int) -> Optional[tuple[int, int]]:
        """Return the header at `at`, or None if it is unreadable."""
        if self.piece(at) is None:
            return None
        index = (at - self._piece.address) // self._memory.size
        return self._words[index], self._words[index + 1]
