"""List the sections with the types of one module: those of its debug file, of the supplementary
file (dwz), and of split DWARF (.dwo files, or one .dwp file).

Sources: DWARF 5, 7.3.2 (split units), 7.3.5 (package files). GNU's earlier form of both is
described in gcc.gnu.org/wiki/DebugFission and DebugFissionDWP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Optional

from findleaks.debuginfo.sections import Sections
from findleaks.engine.dwarf_sources import OLD_TYPES, SPLIT, Source
from findleaks.engine.reference.dwarf_units import NOTHING, Budget, Malformed, Unit, Value
from findleaks.engine.reference.dwarf_units import Sections as UnitSections
from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.value_classes import NamedTuple

MOST_SKELETONS = 1 << 20
MOST_ROWS = 1 << 20  # maximum number of units of a package file
_NAME, _LOW_PC, _RANGES_BASE = 0x03, 0x11, 0x2132
_DWO_NAME, _COMP_DIR, _GNU_DWO_NAME, _GNU_DWO_ID, _ADDRESS_BASE = 0x76, 0x1B, 0x2130, 0x2131, 0x73
_SECTIONS = {
    "abbreviations": ".debug_abbrev",
    "strings": ".debug_str",
    "line_strings": ".debug_line_str",
    "string_offsets": ".debug_str_offsets",
    "addresses": ".debug_addr",
    "ranges": ".debug_ranges",
    "range_lists": ".debug_rnglists",
}
# Columns of an index, by DW_SECT_...
_SLICED = {3: "abbreviations", 6: "string_offsets", 8: "range_lists"}
Progress = Callable[[], None]


class Skeleton(NamedTuple):
    """A unit whose entries are in another file."""

    name: str
    """Path of the .dwo file. It may be relative to `folder`."""
    folder: str
    id: int
    address_base: int
    ranges_base: int
    low_pc: int


class TypeSources:
    """The sources of one debug file. `data`: the content of the file. `open_file` opens a .dwo or
    .dwp file by its path."""

    def __init__(
        self,
        data: elf.Buffer,
        alternate: Optional[elf.Buffer],
        open_file: Callable[[str], Optional[elf.Buffer]],
        poll: Progress,
    ) -> None:
        self._head, self.data = elf.header(data), data
        self._poll, self._open = poll, open_file
        self.sections = Sections(data, self._head, poll)
        self._alternate = Sections(alternate, elf.header(alternate), poll) if alternate is not None else None
        self.missing = 0  # number of .dwo files that were not found

    @property
    def word(self) -> int:
        return self._head.bits // 8

    @property
    def order(self) -> str:
        """The byte order of the file."""
        return self._head.byteorder

    def main(self) -> list[Source]:
        """Return the sources of the debug file and of the supplementary file."""
        found, key = [], 0
        rest: dict[str, Any] = self._rest(self.sections)
        other = self._alternate
        info = self.sections.get(".debug_info", b"")
        types = self.sections.get(".debug_types", b"")
        others = len(info) + len(types)
        extra: dict[str, Any] = {"others": others, "other_strings": other.get(".debug_str", b"")} if other is not None else {}
        for data, flags in ((info, 0), (types, OLD_TYPES)):
            if len(data):
                found.append(Source(data, key=key, flags=flags, **rest, **extra))
            key += len(data)
        if other is not None:
            found.append(Source(other.get(".debug_info", b""), key=key, references=key, **self._rest(other)))
        return found

    @staticmethod
    def _rest(sections: Mapping[str, elf.Buffer], suffix: str = "") -> dict[str, Any]:
        return {field: sections.get(name + suffix, b"") for field, name in _SECTIONS.items()}

    @cached_property
    def skeletons(self) -> Sequence[Skeleton]:
        """The units whose entries are in other files."""
        return list(self._find_skeletons()) if ".debug_addr" in self.sections else []

    def _find_skeletons(self) -> Iterator[Skeleton]:
        main, at, budget = self.main(), 0, Budget()
        if not main:
            return
        sections = UnitSections(main[0], self._head.byteorder)
        budget.left = 1 << 28
        for count in range(MOST_SKELETONS):
            if not count % 64:
                self._poll()
            try:
                unit = Unit(sections, at)
            except Malformed:
                return
            at = unit.end
            if unit.kind != 4 and unit.version >= 5:
                continue
            try:
                found = _skeleton(unit, budget)
            except Malformed:
                continue
            if found is not None:
                yield found

    def signature(self) -> tuple[object, ...]:
        """Return a value that identifies the sections, without reading them. It is used as a key of
        the cache."""
        own = tuple(self.sections.size(name) for name in (".debug_info", ".debug_types", ".debug_str", ".debug_abbrev"))
        other = self._alternate.size(".debug_info") if self._alternate is not None else 0
        return own, other, len(self.skeletons), sum(one.id for one in self.skeletons)

    def split(self, key: int) -> Iterator[list[Source]]:
        """Yield the sources of each .dwo file, or of all units of the package, with keys from `key`
        on. Use each list before you request the next one."""
        package = self._package
        for one in self.skeletons:
            self._poll()
            found = package.unit(one.id) if package is not None else None
            made = [found] if found is not None else self._dwo(one)
            if not made:
                self.missing += 1
                continue
            made = [source._replace(**self._addresses(one)) for source in made]
            yield _number_sources(made, key)
            key += sum(len(source.info) for source in made)
        for source in package.type_units() if package is not None else ():
            yield _number_sources([source], key)
            key += len(source.info)

    def _addresses(self, one: Skeleton) -> dict[str, Any]:
        """Return the sections and offsets that a split unit uses from the main file."""
        own = {"addresses": self.sections.get(".debug_addr", b""), "ranges": self.sections.get(".debug_ranges", b"")}
        return {**own, "address_base": one.address_base, "ranges_base": one.ranges_base, "low_pc": one.low_pc}

    @cached_property
    def _package(self) -> Optional[Package]:
        data = self._open("") if self.skeletons else None
        sections = self._open_sections(data)
        return Package(sections, self._head.byteorder) if sections is not None else None

    def _dwo(self, one: Skeleton) -> list[Source]:
        sections = self._open_sections(self._open(os.path.join(one.folder, one.name)))
        if sections is None:
            return []
        rest = self._rest(sections, ".dwo")
        found = [Source(data, flags=SPLIT, **rest) for data in sections.every(".debug_info.dwo")]
        if not any(number == one.id for source in found for number in _ids(source, self._head.byteorder)):
            return []
        return found + [Source(data, flags=SPLIT | OLD_TYPES, **rest) for data in sections.every(".debug_types.dwo")]

    def _open_sections(self, data: Optional[elf.Buffer]) -> Optional[Sections]:
        if data is None:
            return None
        try:
            head = elf.header(data)
        except TargetError:
            return None
        return Sections(data, head, self._poll) if head.prefix == self._head.prefix else None


class Package:
    """A .dwp file: sections of many units, and an index for each kind of units."""

    def __init__(self, sections: Mapping[str, elf.Buffer], order: str) -> None:
        self._sections, self._order = sections, order
        self._units = self._index(".debug_cu_index")
        self._types = self._index(".debug_tu_index")

    def unit(self, number: int) -> Optional[Source]:
        """Return the unit with this id."""
        return self._source(self._units[number]) if number in self._units else None

    def type_units(self) -> Iterator[Source]:
        """Yield the type units."""
        return (source for row in self._types.values() if (source := self._source(row)) is not None)

    def _source(self, row: Mapping[int, tuple[int, int]]) -> Optional[Source]:
        old = 2 in row and 1 not in row
        info = self._part(".debug_types.dwo" if old else ".debug_info.dwo", row.get(2 if old else 1))
        parts: dict[str, Any] = {field: self._part(_SECTIONS[field] + ".dwo", row.get(number)) for number, field in _SLICED.items()}
        strings: dict[str, Any] = {field: self._sections.get(_SECTIONS[field] + ".dwo", b"") for field in ("strings", "line_strings")}
        return Source(info, flags=SPLIT | (OLD_TYPES if old else 0), **parts, **strings) if len(info) else None

    def _part(self, name: str, bounds: Optional[tuple[int, int]]) -> elf.Buffer:
        data = memoryview(self._sections.get(name, b""))
        return data[bounds[0] : bounds[0] + bounds[1]] if bounds is not None else b""

    def _index(self, name: str) -> dict[int, dict[int, tuple[int, int]]]:
        """Read an index. It consists of a header, a hash table of ids, rows of offsets, and rows of
        sizes."""
        data = bytes(self._sections.get(name, b""))

        def number(at: int, size: int = 4) -> int:
            return int.from_bytes(data[at : at + size], "big" if self._order == "big" else "little")

        columns, units, slots = number(4), number(8), number(12)
        table = 16 + 12 * slots
        if columns > 16 or units > MOST_ROWS or slots > 4 * MOST_ROWS or table + 4 * columns * (1 + 2 * units) > len(data):
            return {}
        kinds = [number(table + 4 * column) for column in range(columns)]
        new = number(0, 2) == 5  # before, 8 was .debug_macro; and the version had 4 bytes
        found = {}
        for slot in range(slots):
            row = number(16 + 8 * slots + 4 * slot)
            if 0 < row <= units:
                begin = table + 4 * columns * row
                places = [(number(begin + 4 * at), number(begin + 4 * (at + columns * units))) for at in range(columns)]
                found[number(16 + 8 * slot, 8)] = {kind: place for kind, place in zip(kinds, places) if new or kind < 7}
        return found


def _number_sources(sources: Sequence[Source], key: int) -> list[Source]:
    """Return the sources with ascending keys. References in each source are to the units of the
    first one."""
    made, first = [], key
    for source in sources:
        made.append(source._replace(key=key, references=first))
        key += len(source.info)
    return made


def _first_values(unit: Unit, budget: Budget) -> Mapping[int, Value]:
    shapes = unit.read_shapes(budget)
    code, at = unit.sections.info.uleb(unit.first, unit.end)
    if code not in shapes:
        raise Malformed
    return unit.read_entry(shapes[code], at)[1]


def _skeleton(unit: Unit, budget: Budget) -> Optional[Skeleton]:
    values = _first_values(unit, budget)

    def text(name: int) -> str:
        return os.fsdecode(values.get(name, NOTHING).data)

    def number(name: int) -> int:
        return values.get(name, NOTHING).number

    name = text(_DWO_NAME) or text(_GNU_DWO_NAME)
    new = unit.version >= 5
    # The id of DWARF 5 is the last field of the header.
    found = unit.sections.info.number(unit.first - 8, 8) if new else number(_GNU_DWO_ID)
    if not name:
        return None
    unit.address_base = number(_ADDRESS_BASE) if _ADDRESS_BASE in values else unit.address_base
    low = unit.address_of(values.get(_LOW_PC, NOTHING))
    return Skeleton(name, text(_COMP_DIR), found, unit.address_base, number(_RANGES_BASE), low or 0)


def _ids(source: Source, order: str) -> Iterator[int]:
    """Yield the ids of the compilation units in a .dwo file."""
    sections, at, budget = UnitSections(source, order), 0, Budget()
    budget.left = 1 << 24
    for _ in range(MOST_SKELETONS):
        try:
            unit = Unit(sections, at)
            if unit.version >= 5 and unit.kind == 5:
                yield sections.info.number(unit.first - 8, 8)
            elif unit.version < 5:
                yield _first_values(unit, budget).get(_GNU_DWO_ID, NOTHING).number
        except Malformed:
            return
        at = unit.end
