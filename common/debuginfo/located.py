"""Find the source lines and functions of one module's code in its debug files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Optional, TypeVar, cast

from findleaks.debuginfo.dwarf import DIE, DebugFile, number, text
from findleaks.debuginfo.functions import Functions, Inlined
from findleaks.debuginfo.lines import Lines
from findleaks.debuginfo.ranges import UnitsByAddress, open_unit, work_of
from findleaks.debuginfo.type_names import shorten_template
from findleaks.demangle import demangle
from findleaks.target.base import SourcePlace

MAX_UNITS = 64  # maximum number of cached units (functions and lines), a few hundred KB each
MAX_ORIGINS = 4
"""Maximum number of entries that are followed to find the name of a function: the entry that it is
an instance of (DW_AT_abstract_origin), and the declaration that it completes
(DW_AT_specification)."""

_C = (0x01, 0x02, 0x0C, 0x1D, 0x2C, 0x8001)  # DW_LANG_ of C89 to C17, and assembler
_SCOPES = {f"DW_TAG_{word}" for word in ("namespace", "structure_type", "class_type", "union_type", "module")}
_UNNAMED = {"DW_TAG_namespace": "(anonymous namespace)"}

Made = TypeVar("Made")


class Located:
    """Looks up addresses in one file."""

    def __init__(self, file: DebugFile) -> None:
        self.file = file
        self._kept: OrderedDict[Hashable, object] = OrderedDict()
        self._names: dict[int, str] = {}

    def at(self, address: int) -> Sequence[SourcePlace]:
        """Return the functions at an address of the file, innermost first; () if none is known.
        `start` of the last one is an address in the file."""
        units = self._once("units", lambda: UnitsByAddress(self.file))
        unit = units.at(address) if units is not None else None
        if unit is None:
            return ()
        lines = self._once((unit, "lines"), lambda: Lines(self.file, self.file.unit_of(unit)))
        functions = self._once((unit, "functions"), lambda: Functions(self.file, unit))
        found = self.file.ask(lambda: functions.at(address), None) if functions is not None else None
        place = lines.at(address) if lines is not None else ("", 0)
        if found is None:
            return (SourcePlace("", *place),) if place[0] else ()
        made = []
        for one in found.inlined:
            made.append(SourcePlace(self._name(unit, one.offset), *place))
            place = self._call(lines, one)
        return (*made, SourcePlace(self._name(unit, found.offset), *place, found.start))

    def _call(self, lines: Optional[Lines], one: Inlined) -> tuple[str, int]:
        path = lines.path(one.call_file) if lines is not None else ""
        return (path, one.call_line) if path else ("", 0)

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Optional[Made]:
        """Return the result of `make`; None if it fails. Results are cached for the last MAX_UNITS
        keys."""
        if key not in self._kept:
            self._kept[key] = self.file.ask(make, None)
            if len(self._kept) > 2 * MAX_UNITS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return cast(Optional[Made], self._kept[key])

    def _name(self, unit: int, offset: int) -> str:
        """Return the demangled name of the function whose entry is at this offset; "" if it has
        none."""
        if offset not in self._names:
            self._names[offset] = demangle(self.file.ask(partial(self._read_name, unit, offset), ""))
        return self._names[offset]

    def _read_name(self, unit: int, offset: int) -> str:
        die, name = self.file.entry(self.file.unit_of(unit), offset), ""
        for _ in range(MAX_ORIGINS):
            linkage = text(die, "DW_AT_linkage_name") or text(die, "DW_AT_MIPS_linkage_name")
            if linkage:
                return linkage
            name = name or text(die, "DW_AT_name")
            origin = "DW_AT_abstract_origin" if "DW_AT_abstract_origin" in die.attributes else "DW_AT_specification"
            further = self.file.follow(die, origin)
            if further is None:
                break
            die = further
        return "::".join((*_scopes(self.file, die), shorten_template(name))) if name else ""


def _scopes(file: DebugFile, die: DIE) -> list[str]:
    """Return the names of the namespaces and classes around an entry, outermost first. For C there
    are none, and the class of a lambda is left out."""
    if number(die.cu.get_top_DIE(), "DW_AT_language") in _C:
        return []
    owner = file.owner(die)
    around = (owner.entry(die.cu, offset) for offset in open_unit(owner, die.cu.cu_offset, work_of(owner))[0].ancestors(die.offset))
    names = (text(one, "DW_AT_name") or _UNNAMED.get(one.tag, "") for one in around if one.tag in _SCOPES)
    return list(filter(None, names))
