"""Explain heap corruption: describe the blocks around the damage, and what probably overwrote
it."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Optional, Union

from findleaks.allocators.base import Problem
from findleaks.audit.address_info import BlockInfo, Describer
from findleaks.errors import UnreadableMemory
from findleaks.formatting import number, shorten
from findleaks.results import verify as results
from findleaks.results.addresses import AddressInfo
from findleaks.results.verify import Content, DamagedBytes, Neighbours, WrittenBytes
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import dataclass, replace

# Bytes before and after the damage that are searched for the ends of the overwritten range.
AROUND = 256
NEAR = 64  # maximum distance in bytes of two neighbouring blocks: headers, canaries, alignment

BARELY = 16
"""If a write begins at most this many bytes after the end of a block, the code that uses that block
may have caused it. Otherwise code may have written before the start of the next block."""

RUN = 4  # fewest adjacent bytes that are reported as a text or a pattern

PATTERNS = {
    0xDEADBEEF: "0xdeadbeef, a marker of freed memory",
    0xDEADC0DE: "0xdeadc0de, a marker of freed memory",
    0xBAADF00D: "0xbaadf00d, a marker of new memory",
    0xFEEDFACE: "0xfeedface, a marker",
    0xCAFEBABE: "0xcafebabe, a marker",
    0x0BADF00D: "0x0badf00d, a marker",
    0xABABABAB: "0xabababab, a marker after blocks",
}

_TEXT = re.compile(rb"[\t\n\r\x20-\x7e]+")


@dataclass(frozen=True)
class OverwrittenBytes:
    """The bytes at a damaged place."""

    # [start, end): all adjacent bytes of this sort; the range may be larger than the damaged place
    start: int
    end: int
    sort: Content
    phrase: str  # for the user
    value: Union[str, float, AddressInfo, None] = None

    def result(self) -> WrittenBytes:
        """Return these bytes as a typed result."""
        value: dict[str, Any] = {} if self.value is None else {"content" if self.sort == "bytes" else self.sort: self.value}
        return WrittenBytes(self.end - self.start, self.start, self.sort, self.phrase, **value)


@dataclass(frozen=True)
class Neighbour:
    """A block beside or around the damage."""

    info: BlockInfo
    content: str  # a summary of the content
    # End of its memory, with the words that the allocator uses after freeing
    # (Allocator.free_footer_words).
    end: int

    def result(self) -> results.Neighbour:
        """Return the block as a typed result."""
        return results.Neighbour(**vars(self.info.result()), content=self.content or None, end=self.end)


@dataclass(frozen=True)
class Damage:
    """A problem of the heap, with its explanation."""

    problem: Problem
    allocator: str
    before: Optional[Neighbour] = None
    at: Optional[Neighbour] = None
    after: Optional[Neighbour] = None
    damaged: Optional[Range] = None
    written: Optional[OverwrittenBytes] = None
    # Bytes from the end of the preceding block to the first damaged byte.
    past_end: Optional[int] = None
    overrun: int = 0  # fewest bytes written past that end; 0 if the write began elsewhere
    cause: str = ""
    # The `place` of an earlier problem that was caused by the same write
    part_of: Optional[int] = None

    @property
    def place(self) -> int:
        """Address of the first wrong byte; the problem's address if that byte is unknown."""
        return self.damaged.start if self.damaged else self.problem.address

    def result(self) -> results.Damage:
        """Return the damage as a typed result."""
        around = (one.result() if one else None for one in (self.before, self.at, self.after))
        return results.Damage(
            self.allocator,
            self.place,
            self.problem.what,
            self.problem.corrupt,
            damaged=DamagedBytes(self.damaged.start, self.damaged.end - self.damaged.start) if self.damaged else None,
            expected=self.problem.expected,
            neighbours=Neighbours(*around),
            written=self.written.result() if self.written else None,
            past_end=self.past_end,
            overrun=self.overrun,
            cause=self.cause or None,
            part_of=self.part_of,
        )


class Explainer:
    """Explains the heap problems of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.target = session.target
        self.describer = Describer(session)

    def explain(self, allocator: str, problem: Problem) -> Damage:
        """Examine the memory around a problem. Only corruption at a readable place is examined."""
        place = self._place(problem) if problem.corrupt else None
        if place is None:
            return Damage(problem, allocator)
        changed = self._changed_bytes(place, problem.expected)
        written = self._what_was_written(place, changed)
        before, at, after = self._neighbours(changed.start)
        past_end, overrun = None, 0
        if before is not None and at is None and changed.start >= before.end:
            past_end = changed.start - before.end
            if written is not None and written.start < before.end:
                overrun = min(written.end, place.end) - before.end
        cause = self._explain_count(place, at, problem.expected) or self._explain_list(place, at, allocator, problem)
        cause = cause or _explain_cause(before, at, after, written, changed, overrun)
        damaged = changed if changed.end > changed.start else None
        return Damage(problem, allocator, before, at, after, damaged, written, past_end, overrun, cause)

    def explain_all(self, allocator: str, problems: Sequence[Problem]) -> list[Damage]:
        """Explain problems that are given in ascending order of their places.
        If one write caused several problems, each later problem gets the place of the first as
        `part_of`."""
        found: list[Damage] = []
        first: Optional[Damage] = None
        for problem in problems:
            finding = self.explain(allocator, problem)
            run = first.written if first is not None else None
            if first is not None and run is not None and finding.damaged is not None and run.start <= finding.place < run.end:
                finding = replace(finding, part_of=first.place)
            else:
                first = finding
            found.append(finding)
        return found

    def _place(self, problem: Problem) -> Optional[Range]:
        """Return the range of wrong bytes. If it is unknown, return the word at the problem's
        address if that word is in a heap, else None."""
        if problem.damaged is not None:
            return problem.damaged if self._read(problem.damaged.start, 1) else None
        word = self.target.arch.word
        if self.session.directory.owner(problem.address) is None or not self._read(problem.address, word):
            return None
        return Range(problem.address, problem.address + word)

    def _explain_count(self, place: Range, at: Optional[Neighbour], expected: Optional[int]) -> str:
        """Return the cause if the damaged word is a link in a free block that is too low or too
        high by one. In that case, the program changed a reference count in the block after `free`.

        Example: `object->references--` on a freed block whose link was 0x…fa1 leaves 0x…fa0. glibc
        2.32 and newer stores a link as link ^ address >> 12, so both forms are tried."""
        arch = self.target.arch
        if at is None or at.info.state not in ("cached", "free") or place.end - place.start != arch.word:
            return ""
        word = int.from_bytes(self._read(place.start, arch.word), arch.byteorder)
        for step, change in ((1, "decremented"), (-1, "incremented")):
            before = word + step & arch.mask
            links = (before, before ^ place.start >> 12)
            if before == expected or (expected is None and any(map(self._is_block, links))):
                return f"a reference count in the block was {change} after the block was freed"
        return ""

    def _explain_list(self, place: Range, at: Optional[Neighbour], allocator: str, problem: Problem) -> str:
        """Return the cause if the first entry of a thread cache's list is what malloc computes from
        a link that is too low or too high by one.

        malloc takes the first block of a list, and stores link ^ address >> 12 of this block as the
        new start of the list (glibc 2.32 and newer). Then the block itself is in use again. It is
        assumed to be in the same page as the next block of the list."""
        arch = self.target.arch
        if allocator != "glibc" or not problem.what.startswith("thread cache") or place.end - place.start != arch.word:
            return ""
        if at is not None and at.info.state in ("cached", "free"):
            return ""
        word, blocks = int.from_bytes(self._read(place.start, arch.word), arch.byteorder), self.session.directory.blocks
        page = word >> 12
        for step, change in ((1, "decremented"), (-1, "incremented")):
            start = ((word ^ page) + step & arch.mask) ^ page
            index = blocks.find(start)
            if index >= 0 and blocks.address(index) == start:
                return f"a reference count in a block was {change} after the block was freed; malloc has allocated the block again since"
        return ""

    def _is_block(self, address: int) -> bool:
        """Whether a block, or the header of a block, begins at this address."""
        blocks = self.session.directory.blocks
        starts = (address, address + 2 * self.target.arch.word)
        return any((index := blocks.find(start)) >= 0 and blocks.address(index) == start for start in starts)

    def _changed_bytes(self, place: Range, expected: Optional[int]) -> Range:
        """Return the range of the bytes of a word that differ from the expected value, in memory
        order."""
        arch = self.target.arch
        found = self._read(place.start, arch.word)
        if expected is None or place.end - place.start != arch.word or len(found) != arch.word:
            return place
        right = expected.to_bytes(arch.word, arch.byteorder)
        differ = [i for i in range(arch.word) if found[i] != right[i]]
        return Range(place.start + differ[0], place.start + differ[-1] + 1) if differ else place

    def _what_was_written(self, place: Range, changed: Range) -> Optional[OverwrittenBytes]:
        """Classify the changed bytes. The result includes adjacent bytes of the same sort."""
        data = self._read(changed.start, changed.end - changed.start)
        if not data:
            return None
        before = self._read_around(changed.start, before=True)
        base, whole = changed.start - len(before), before + data + self._read_around(changed.end, before=False)
        first, last = len(before), len(before) + len(data)
        if not data.strip(b"\0"):
            return OverwrittenBytes(changed.start, changed.end, "zeros", "a zero byte" if len(data) == 1 else f"{len(data)} zero bytes")
        found = _same_byte(whole, first, last)
        if found is not None:
            start, end = found
            byte = whole[start]
            shown = f' ("{chr(byte)}")' if 33 <= byte < 127 else ""
            phrase = f"the byte {byte:#04x}{shown}, {number(end - start)} times"
            return OverwrittenBytes(base + start, base + end, "pattern", phrase, hex(byte))
        wide = last - first >= self.target.arch.word // 2
        if wide and self._points(int.from_bytes(self._read(place.start, self.target.arch.word), self.target.arch.byteorder)):
            return self._word(place)
        found = _text(whole, first, last)
        if found is not None:
            start, end = found
            text = whole[start:end].decode("ascii", "replace")
            cut = "…" if start == 0 and before else ""
            return OverwrittenBytes(base + start, base + end, "text", f'text, "{cut}{_shorten(text)}"', text)
        return self._word(place)

    def _word(self, place: Range) -> OverwrittenBytes:
        """Classify a word that is neither text nor a run of equal bytes. It is a pointer, a number,
        a known marker, or unknown bytes."""
        arch = self.target.arch
        size = arch.word
        data = self._read(place.start, size)
        if len(data) < size:
            raw = self._read(place.start, place.end - place.start)
            return OverwrittenBytes(place.start, place.end, "bytes", f"the bytes {raw.hex(' ')}", raw.hex())
        value = int.from_bytes(data, arch.byteorder)
        for half in (value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF):
            if half in PATTERNS:
                return OverwrittenBytes(place.start, place.start + size, "pattern", PATTERNS[half], hex(half))
        if self._points(value):
            start, end = self._pointers(place.start)
            answer = self.describer.answer(value)
            count = (end - start) // size
            many = f", one of {count} adjacent pointers" if count > 1 else ""
            phrase = f"a pointer, {value:#x}{many}: {shorten(answer.phrase)}"
            return OverwrittenBytes(start, end, "pointer", phrase, answer.result())
        clear = value ^ place.start >> 12
        if self._points(clear):
            answer = self.describer.answer(clear)
            phrase = f"a safe-linked pointer of glibc to {clear:#x}: {shorten(answer.phrase)}"
            return OverwrittenBytes(place.start, place.start + size, "link", phrase, answer.result())
        number = decode_signed(value, 8 * size)
        if abs(number) < 1 << 32:
            shown = f"the number {number:,}" + (f" ({value:#x})" if abs(number) > 9 else "")
            return OverwrittenBytes(place.start, place.start + size, "number", shown, number)
        if size == 8 and value & 0xFFFFF == 0 and 0x3E0 <= value >> 52 & 0x7FF <= 0x43F:
            real = struct.unpack("<d", value.to_bytes(8, "little"))[0]
            return OverwrittenBytes(place.start, place.start + size, "number", f"the floating-point number {real:g}", real)
        return OverwrittenBytes(place.start, place.start + size, "bytes", f"{value:#x}, neither text nor pointer", data.hex())

    def _points(self, value: int) -> bool:
        return value >= self.target.arch.page and self.describer.region(value) is not None

    def _pointers(self, start: int) -> tuple[int, int]:
        """Return the range of adjacent pointers that contains the one at `start`."""
        size, arch = self.target.arch.word, self.target.arch

        def is_pointer(address: int) -> bool:
            data = self._read(address, size)
            return len(data) == size and self._points(int.from_bytes(data, arch.byteorder))

        low, high = start, start + size
        while start - low < AROUND and is_pointer(low - size):
            low -= size
        while high - start < AROUND and is_pointer(high):
            high += size
        return low, high

    def _read_around(self, address: int, before: bool) -> bytes:
        """Read memory that ends at an address (`before`) or begins there. The size is AROUND, 64 or
        16 bytes: the largest of these that is readable."""
        for count in (AROUND, 64, 16):
            data = self._read(address - count if before else address, count)
            if data:
                return data
        return b""

    def _read(self, address: int, size: int) -> bytes:
        if not 0 < address < self.target.arch.mask - size:
            return b""
        try:
            return self.target.read(address, size)
        except UnreadableMemory:
            return b""

    def _neighbours(self, address: int) -> tuple[Optional[Neighbour], Optional[Neighbour], Optional[Neighbour]]:
        """Return three blocks of the same heap: the one before an address, the one that contains
        it, and the one after it."""
        blocks = self.session.directory.blocks
        index = blocks.find(address)
        following = blocks.at_or_after(address) if index < 0 else index + 1
        before = (following if index < 0 else index) - 1

        def neighbour(at: int) -> Optional[Neighbour]:
            near = 0 <= at < len(blocks) and (at == index or self._in_one_heap(blocks.address(at), address))
            return self._neighbour(at) if near else None

        return neighbour(before), neighbour(index), neighbour(following)

    def _in_one_heap(self, one: int, other: int) -> bool:
        """Whether two addresses lie in one heap, or are at most NEAR bytes apart.
        `one`: the start of a block before or after `other`."""
        blocks = self.session.directory.blocks
        gap = other - one - blocks.size(blocks.find(one)) if one < other else one - other
        if gap <= NEAR:
            return True
        first, second = self.session.directory.owner(one), self.session.directory.owner(other)
        return first is not None and second is not None and first.heap is second.heap

    def _neighbour(self, index: int) -> Neighbour:
        info = self.describer.block(index)
        data = self._read(info.address, min(info.size, 64))
        owner = self.session.directory.owner(info.address)
        footer = self.target.arch.word * owner.allocator.free_footer_words if owner is not None and info.state == "free" else 0
        return Neighbour(
            info,
            info.type or info.hint or self.session.types.hint(data) or data[:8].hex(" ") + (" …" if len(data) > 8 else ""),
            info.address + info.size + footer,
        )


def _run_at(pattern: re.Pattern[bytes], data: bytes, at: int) -> tuple[int, int]:
    """Return the match of the pattern that contains position `at`; an empty one if there is
    none."""
    return next((match.span() for match in pattern.finditer(data) if match.start() <= at < match.end()), (at, at))


def _same_byte(data: bytes, first: int, last: int) -> Optional[tuple[int, int]]:
    """Return the range of equal bytes around [first, last); None if it is too short for a
    pattern."""
    start, end = _run_at(re.compile(re.escape(data[first : first + 1]) + b"+"), data, first)
    return (start, end) if end >= last and end - start >= RUN else None


def _text(data: bytes, first: int, last: int) -> Optional[tuple[int, int]]:
    """Return the range of the text that begins in the changed bytes. The text must fill these bytes
    or end with a NUL byte."""
    start, end = _run_at(_TEXT, data, first)
    whole = end >= last or data[end : end + 1] == b"\0"
    return (start, end) if whole and end - start >= RUN else None


def _shorten(text: str) -> str:
    safe = text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return safe if len(safe) <= 60 else safe[:28] + "…" + safe[-31:]


def _explain_cause(
    before: Optional[Neighbour],
    at: Optional[Neighbour],
    after: Optional[Neighbour],
    written: Optional[OverwrittenBytes],
    place: Range,
    overrun: int,
) -> str:
    """Return the most likely cause, as a phrase."""
    if at is not None:
        freed = written is not None and written.sort != "link" and at.info.state in ("cached", "free")
        return "written through a pointer to the block after it was freed" if freed else ""
    if written is None or before is None:
        return ""
    past_end = f"the block at {before.info.address:#x} was written past its end"
    if overrun and written.start < before.end - BARELY:
        return past_end
    if written.end > place.end and written.start == place.start and written.sort in ("text", "pointer"):
        return "written before the start of the next block, or by a stray pointer"
    if after is not None and abs(written.start - before.end) <= BARELY:
        return f"{past_end}, or the next block was written before its start"
    return f"most likely {past_end}"


def select_first_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first problem of each damaged place, in two parts, each ordered by address.
    Corruption comes first, then problems that only limit what could be read."""
    kept: dict[tuple[int, int], Problem] = {}
    for problem in problems:
        place = problem.damaged or (problem.address, hash(problem.what))
        kept.setdefault((place[0], place[1]), problem)
    return sorted(kept.values(), key=lambda p: (not p.corrupt, p.damaged.start if p.damaged else p.address))
