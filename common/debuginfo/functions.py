"""Find the functions of a unit by address, and the functions inlined in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.debuginfo.dwarf import DebugFile
from findleaks.debuginfo.entries import (
    AT_CALL_FILE,
    AT_CALL_LINE,
    AT_HIGH_PC,
    AT_RANGES,
    TAG_CATCH,
    TAG_INLINED,
    TAG_LEXICAL_BLOCK,
    TAG_SUBPROGRAM,
    TAG_TRY,
    Entry,
    Unit,
    Values,
)
from findleaks.debuginfo.ranges import CodeRanges, open_unit, work_of

MAX_FUNCTIONS = 1 << 18  # maximum number of functions of a unit
MAX_INLINED = 256  # maximum number of levels of inlined functions at one address
_LOOK_BACK = 8  # number of functions before an address that are tried

# Entries whose children may have code in their ranges.
_WITH_CODE = frozenset((TAG_SUBPROGRAM, TAG_INLINED, TAG_LEXICAL_BLOCK, TAG_TRY, TAG_CATCH))
# Types. Functions may be declared in them, and in some languages such entries have code.
_TYPES = frozenset((0x01, 0x02, 0x04, 0x13, 0x15, 0x17, 0x38, 0x52))


class Inlined(NamedTuple):
    """An inlined function: the offset of its entry, and the file number and line of the call."""

    offset: int
    call_file: int
    call_line: int


class Function(NamedTuple):
    """A function at an address: the start of its code, the offset of its entry, and the functions
    that are inlined at the address, innermost first."""

    start: int
    offset: int
    inlined: list[Inlined]


class Functions:
    """The functions of the unit at an offset of .debug_info."""

    def __init__(self, file: DebugFile, at: int) -> None:
        work = work_of(file)
        self._unit, top = open_unit(file, at, work)
        self._ranges = CodeRanges(file, self._unit.head, top, work)
        self._index = self._index_ranges(False)
        self._deep = False

    def at(self, address: int) -> Optional[Function]:
        """Return the function at this address of the file; None if there is none."""
        found = self._function(address)
        if found is None and not self._deep:
            # The function may be nested in another function or in a type, so nested ones are
            # indexed, too.
            self._index, self._deep = self._index_ranges(True), True
            found = self._function(address)
        return Function(*found, self._find_inlined(found[1], address)[::-1]) if found is not None else None

    def _function(self, address: int) -> Optional[tuple[int, int]]:
        """Return the start of the function's code, and the offset of its entry; None if there is
        none."""
        last = bisect_right(self._index, (address, 1 << 65, 0))
        for low, high, offset in self._index[max(last - _LOOK_BACK, 0) : last][::-1]:
            if low <= address < high:
                return low, offset
        return None

    def _index_ranges(self, deep: bool) -> list[tuple[int, int, int]]:
        """Return (start, end, entry) of each range of each function. If not `deep`, functions are
        left out that are inside another function, or inside a type whose end is known."""
        unit = self._unit
        index: list[tuple[int, int, int]] = []

        def past(entry: Entry) -> Optional[int]:
            skipped = entry.shape.tag in _WITH_CODE or entry.shape.tag in _TYPES
            return unit.sibling(entry) if skipped and not deep else None

        for entry in unit.entries(unit.head.first, past):
            if entry.shape.tag == TAG_SUBPROGRAM and _may_have_code(entry):
                index += [(low, high, entry.offset) for low, high in self._ranges.of(unit.values(entry)) or ()]
                if len(index) > MAX_FUNCTIONS:
                    break
        index.sort()
        return index

    def _find_inlined(self, function: int, address: int) -> list[Inlined]:
        """Return the functions that are inlined in the function at an address, outermost first."""
        found: list[Inlined] = []
        for entry, values in self._covering(function, address):
            if entry.shape.tag == TAG_INLINED:
                call = (values.get(name, (0, 0))[1] for name in (AT_CALL_FILE, AT_CALL_LINE))
                found.append(Inlined(entry.offset, *call))
                if len(found) == MAX_INLINED:
                    break
        return found

    def _covering(self, function: int, address: int) -> Iterator[tuple[Entry, Values]]:
        """Yield the entries in a function whose code includes the address, outer ones first."""
        unit: Unit = self._unit
        inside = -1  # depth of the last entry that covers the address
        verdicts: dict[int, bool] = {}

        def past(entry: Entry) -> Optional[int]:
            if entry.shape.tag in _WITH_CODE and verdicts.get(entry.offset, True):
                return None
            return unit.sibling(entry)

        rest = unit.entries(function, past)
        skipped = 1 << 30  # entries below this depth belong to code that does not cover the address
        for entry in rest:
            if entry.depth <= skipped:
                skipped = 1 << 30
            if entry.depth > skipped:
                continue
            if entry.depth <= inside or (entry.depth == 0 and entry.offset != function):
                return
            if entry.offset == function or entry.shape.tag not in _WITH_CODE:
                if entry.offset != function:
                    skipped = entry.depth if entry.shape.children else skipped
                continue
            values = unit.values(entry) if _may_have_code(entry) else {}
            ranges = self._ranges.of(values) if values else None
            if ranges is None and entry.shape.tag in (TAG_LEXICAL_BLOCK, TAG_TRY, TAG_CATCH):
                continue  # a block without code may have inner blocks with code
            covers = ranges is not None and any(low <= address < high for low, high in ranges)
            verdicts[entry.offset] = covers
            if covers and entry.shape.tag != TAG_SUBPROGRAM:
                inside = entry.depth
                yield entry, values
            else:
                skipped = entry.depth


def _may_have_code(entry: Entry) -> bool:
    return any(one.name in (AT_HIGH_PC, AT_RANGES) for one in entry.shape.attributes)
