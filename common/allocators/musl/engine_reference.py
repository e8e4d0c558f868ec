"""The Python reference engine's functions for musl; see engine.py.

Tests compare them with musl_groups.c and musl_oldmalloc.c (common/native)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Optional

from findleaks.allocators.musl import engine as s
from findleaks.allocators.musl.engine import GROUP, HEADER, LARGE, LONE, MOVED, SUMS, UNIT, SlotGroups, SlotRead, TagWalk
from findleaks.allocators.musl.layout import AREA, Meta, head_of
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

_DEEPEST = 64


class Bytes:
    """Reads numbers from ascending pieces of memory. Returns None if a byte is missing."""

    def __init__(self, arch: Arch, pieces: Sequence[Piece]) -> None:
        self._order = arch.byteorder
        self._pieces = pieces
        self._starts = [piece.address for piece in pieces]

    def at(self, address: int, size: int) -> Optional[int]:
        """Read the number of `size` bytes at `address`."""
        found = self.read(address, size)
        return int.from_bytes(found, self._order) if found is not None else None

    def head(self, slot: int) -> Optional[int]:
        """Read the header before a slot."""
        found = self.at(slot - HEADER, HEADER)
        return head_of(found, self._order) if found is not None else None

    def read(self, address: int, size: int) -> Optional[bytes]:
        """Read `size` bytes, which may be in several adjacent pieces."""
        at = bisect_right(self._starts, address) - 1
        found = b""
        while 0 <= at < len(self._pieces) and len(found) < size:
            offset = address + len(found) - self._starts[at]
            if not 0 <= offset < len(self._pieces[at].data):
                break
            found += self._pieces[at].data[offset : offset + size - len(found)]
            at += 1
        return found if len(found) == size else None


class _Group:
    """A group's record while it is built."""

    def __init__(self, mem: int, meta: int, masks: int, bits: int, classes: Sequence[int]) -> None:
        self.mem, self.meta, self.masks, self.bits = mem, meta, masks, bits
        self.count = (bits & 31) + 1
        self.freeable = bits >> 5 & 1
        self.number = bits >> 6 & 63
        self.maplen = bits >> 12
        own = self.maplen and self.count == 1
        self.stride = self.maplen * AREA - UNIT if own else classes[self.number] * UNIT if self.number < len(classes) else 0
        self.end = mem + (self.maplen * AREA if self.maplen else UNIT + self.count * self.stride)
        self.free = (masks | masks >> 32) & (1 << self.count) - 1
        self.outer = self.nested = 0

    def good(self, classes: Sequence[int], mask: int) -> bool:
        """Return whether a group with these values is possible."""
        if self.mem % UNIT or self.end >= mask:
            return False
        if self.number == LARGE:
            return self.count == 1 and self.maplen > 0
        return self.number < len(classes) and UNIT + self.count * self.stride <= self.end - self.mem


def read_groups(
    engine: PureEngine, pieces: Sequence[Piece], areas: Sequence[int], classes: Sequence[int], regions: Sequence[Range]
) -> SlotGroups:
    arch = engine.arch
    memory = Bytes(arch, pieces)
    wrong: array[int] = array("Q")
    layout, meta = Meta(arch.word), Struct(arch.word_format[0] + ("3Q2IQ" if arch.word == 8 else "3I2II"))
    found = []
    for area in areas:
        data = memory.read(area, AREA)
        if data is None:
            wrong.extend((s.MISSING, area, 0, 0))
            continue
        metas = data[layout.first : layout.first + layout.count * layout.size]
        for at, (_, _, mem, available, freed, last) in enumerate(meta.iter_unpack(metas)):
            if mem:
                bits = layout.bits(last, arch.byteorder)
                group = _Group(mem, area + layout.first + at * layout.size, available | freed << 32, bits, classes)
                if group.good(classes, arch.mask):
                    found.append(group)
                else:
                    wrong.extend((s.CORRUPT, group.meta, mem, bits))
    found.sort(key=lambda group: (group.mem, -group.end, group.meta))
    kept = _nest(found, regions, wrong)
    records: array[int] = array("Q")
    sums = array("Q", bytes(8 * len(s.LABELS) * s.CLASSES * SUMS))
    for g in kept:
        records.extend((g.mem, g.meta, g.masks, g.bits, g.stride, g.end, g.outer, g.nested))
        nested = bin(g.nested).count("1")
        taken = (kept[g.outer - 1].stride if g.outer else g.end - g.mem) - nested * g.stride
        free = bin(g.free).count("1")
        for number, more in enumerate((1, g.count, free, nested, taken, free * (g.stride - HEADER))):
            sums[_sums_at(g.bits) + number] += more
    return SlotGroups(records, _cut(kept), wrong, sums)


def _label(bits: int) -> int:
    """Return the index of a group's label in LABELS. `bits` is the last word of its meta."""
    return 2 if bits >> 6 & 63 == LARGE else 1 - (bits >> 5 & 1)


def _sums_at(bits: int) -> int:
    """Return the index of the sums in which a group is counted."""
    return (_label(bits) * s.CLASSES + (bits >> 6 & 63)) * SUMS


def _nest(found: Sequence[_Group], regions: Sequence[Range], wrong: array[int]) -> list[_Group]:
    """Return the groups in nesting order. Groups whose position is impossible are added to
    `wrong`."""
    starts = [region.start for region in regions]
    kept: list[_Group] = []
    open_: list[int] = []
    for group in found:
        while open_ and kept[open_[-1]].end <= group.mem:
            open_.pop()
        around = kept[open_[-1]] if open_ else None
        why = s.MISFIT if len(open_) == _DEEPEST else _find_misplacement(group, around, regions, starts)
        if why:
            wrong.extend((why, group.meta, group.mem, around.mem if around else 0))
            continue
        if around is not None:
            around.nested |= 1 << (group.mem - around.mem - UNIT) // around.stride
            group.outer = open_[-1] + 1
        open_.append(len(kept))
        kept.append(group)
    return kept


def _find_misplacement(group: _Group, around: Optional[_Group], regions: Sequence[Range], starts: Sequence[int]) -> int:
    """Return what is wrong with a group's position, or 0."""
    if around is None:
        if not group.maplen and group.freeable:
            return s.NO_SLOT
        at = bisect_right(starts, group.mem) - 1
        return 0 if at >= 0 and group.end <= regions[at].end else s.NO_REGION
    if group.maplen or not group.freeable:
        return s.OVERLAPS
    number, offset = divmod(group.mem - around.mem - UNIT, around.stride)
    if not 0 <= number < around.count or offset or group.end - group.mem > around.stride:
        return s.MISFIT
    return s.IN_FREE if around.free >> number & 1 else 0


def _cut(groups: Sequence[_Group]) -> array[int]:
    """Divide the groups into batches."""
    batches: array[int] = array("Q")
    now = [0] * s.BATCH
    for at, g in enumerate(groups):
        if not g.outer:
            lone = int(g.stride > LONE)
            label, start, end, first, last, slots, kind = now
            on = slots and (label, end, kind) == (_label(g.bits), g.mem, lone)
            if not on or (last - first >= s.MAX_LONE if lone else g.end - start > s.SPAN):
                batches.extend(now if slots else ())
                now = [_label(g.bits), g.mem, g.mem, at, at, 0, lone]
            now[2] = g.end
        now[4] = at + 1
        now[5] += g.count
    batches.extend(now if now[5] else ())
    return batches


def read_slots(engine: PureEngine, pieces: Sequence[Piece], groups: SlotGroups, first: int, last: int, capacity: int) -> SlotRead:
    arch = engine.arch
    reader = _Slots(arch, pieces, groups)
    at, last = first, min(last, len(groups.records) // GROUP)
    while at < last:
        at = reader.group(at)
    if len(reader.made.starts) > capacity:
        raise ValueError(f"groups {first} to {last} have more than {capacity} slots, or are not a batch")
    return reader.made


class _Slots:
    """Reads groups one after the other."""

    def __init__(self, arch: Arch, pieces: Sequence[Piece], groups: SlotGroups) -> None:
        self._word = arch.word
        self._memory = Bytes(arch, pieces)
        self._groups = groups
        self.made = SlotRead(array("Q"), array("Q"), bytearray(), array("Q"))

    def group(self, index: int) -> int:
        """Read a group and those inside it. Returns the index of the next group."""
        mem, meta, masks, bits, stride, _, _, nested = self._groups.records[index * GROUP : (index + 1) * GROUP]
        if self._memory.at(mem, self._word) not in (None, meta):
            self.made.troubles.extend((s.GROUP_HEADER, index, 0))
        free = masks | masks >> 32
        after, used = index + 1, 0
        for number in range((bits & 31) + 1):
            if nested >> number & 1:
                after = self.group(after)
                continue
            start, size, state = mem + UNIT + number * stride, stride - HEADER, State.FREE
            if not free >> number & 1:
                code, start, size, state = self._slot(mem + UNIT, stride, number)
                if code:
                    self.made.troubles.extend((code, index, number))
                used += size if state == State.IN_USE else 0
            self.made.starts.append(start)
            self.made.sizes.append(size)
            self.made.states.append(state)
        self._groups.sums[_sums_at(bits) + 6] += used
        return after

    def _slot(self, storage: int, stride: int, number: int) -> tuple[int, int, int, State]:
        """Return (code or 0, start, size, state) of the block in a slot that is not free."""
        start, size = storage + number * stride, stride - HEADER
        end = start + size
        head = self._memory.head(start)
        if head is None:
            return s.UNREADABLE, start, size, State.IN_USE
        few, byte = head >> 13 & 7, head >> 8 & 0xFF
        if head & 0xFFFF1FFF == number << 8 | (number * (stride // UNIT) & 0xFFFF) << 16 and few < 6:
            reserve: Optional[int] = few
            if few == 5:
                reserve = self._memory.at(end - HEADER, 4)
                if reserve is None:
                    return s.UNREADABLE, start, size, State.IN_USE
                if not 5 <= reserve <= size:
                    return s.OVERRUN, start, size, State.IN_USE
            return 0, start, size - (reserve or 0), State.IN_USE
        if byte == MOVED:
            # The header has only 16 bits of the offset, so positions that differ by multiples of 1
            # MiB are tried.
            for block in range(start + (head >> 16) * UNIT, end, UNIT << 16):
                reserve = self._reserve(block, end, number, (block - storage) // UNIT) if block != start else None
                if reserve is not None:
                    return 0, block, end - block - reserve, State.IN_USE
            return s.NOT_THERE, start, size, State.IN_USE
        if few == 6:
            return s.UNKNOWN_GROUP, start, size, State.METADATA
        if (byte == 0xFF or (byte == 0 and number)) and head & 0xFFFF00FF == 0:
            return s.BETWEEN, start, size, State.FREE
        return s.OVERWRITTEN, start, size, State.IN_USE

    def _reserve(self, block: int, end: int, number: int, offset: int) -> Optional[int]:
        """Return the number of bytes at the slot's end that were not requested, if the header at
        `block` is that of a block; otherwise None."""
        head = self._memory.head(block)
        if head is None or head >> 8 & 31 != number:
            return None
        stored: Optional[int] = head >> 16
        if head & 0xFF:
            stored = None if stored else self._memory.at(block - 2 * HEADER, 4)
        reserve: Optional[int] = head >> 13 & 7
        least = 0
        if reserve == 5:
            reserve, least = self._memory.at(end - HEADER, 4), 5
        elif head >> 13 & 7 > 5:
            reserve = None
        return reserve if stored == offset and reserve is not None and least <= reserve <= end - block else None


def walk_tags(engine: PureEngine, piece: Piece, chunk: int, before: int, limit: int, capacity: int) -> TagWalk:
    arch = engine.arch
    word = arch.word
    header, odd = 2 * word, 4 * word - 2
    starts, sizes, states = array("Q"), array("Q"), bytearray()
    skip = (chunk - piece.address) % word if chunk >= piece.address else 0
    length = max(len(piece.data) - skip, 0) // word * word
    words = arch.words(piece.data[skip : skip + length])
    index, last = (chunk - piece.address - skip) // word, len(words) - 1
    code = s.MORE
    while 0 <= index < last and len(starts) < capacity:
        psize, csize = words[index], words[index + 1]
        size = csize & ~1
        if psize != before:
            code = s.DIFFERS
        elif csize == 1:
            code = s.ENDS
        elif csize & odd or not size or chunk + size + header > limit:
            code = s.NO_SIZE
        if code:
            break
        starts.append(chunk + header)
        sizes.append(size - header)
        states.append(State.IN_USE if csize & 1 else State.FREE)
        before = csize
        chunk += size
        index += size // word
    return TagWalk(starts, sizes, states, chunk, before, code)
