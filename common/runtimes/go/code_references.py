"""Find the functions whose code refers to a variable. They name the variables of a stripped
program: "variable at 0x58b840 (used in main.fill)".

Only x86-64 is supported: an instruction contains the distance from its end to the variable. The
byte before the distance (ModRM) has mod 0 and r/m 5. Up to four bytes of a constant may follow the
distance.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, section 2.2.1.6
(RIP-relative addressing)."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Sequence

from findleaks.errors import Interrupted
from findleaks.runtimes.go.moduledata import ModuleData
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.ranges import merge_ranges, range_at

_RELATIVE = re.compile(rb"[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(.{4}))", re.DOTALL)
_CONSTANTS = (0, 1, 4)  # bytes of a constant after the distance
_MAX_CODE = 1 << 28
_SLICE = 4 << 20  # bytes of code that are searched between two checks for Ctrl-C
_MOST_PLACES = 64  # references to one variable that are looked up
_MOST_NAMES = 2


def find_users(target: Target, tables: Sequence[FunctionTable], addresses: Collection[int]) -> dict[int, list[str]]:
    """Return, by address of a variable, the functions whose code refers to it: at most two, the
    most frequent first, initialisers last. Functions of the package runtime are left out if others
    refer to it."""
    wanted = frozenset(addresses)
    found: dict[int, list[str]] = {}
    for table in tables if wanted else ():
        places: dict[int, list[int]] = {}
        for address, place in _references(target, table.module, wanted):
            places.setdefault(address, []).append(place)
        for address, several in places.items():
            found.setdefault(address, []).extend(_name_functions(table, several[:_MOST_PLACES]))
    return {address: _rank(names) for address, names in found.items()}


def variables_of_function(target: Target, table: FunctionTable, name: str) -> list[int]:
    """Return the aligned words of variables to which the code of a function refers, in the order of
    the references; [] if there is no such function, or on other machines than x86-64."""
    code = table.code_of(name) if target.arch.name == X86_64.name else None
    module, found = table.module, list[int]()
    places = merge_ranges((module.noptrdata, module.data, module.bss, module.noptrbss))
    for piece in target.pieces(*code) if code is not None and code.end - code.start <= _SLICE else ():
        for _, address in _operands(bytes(piece.data), piece.address):
            found += [address + more for more in _CONSTANTS if (address + more) % 8 == 0 and range_at(places, address + more) is not None]
    return found


def _references(target: Target, module: ModuleData, wanted: frozenset[int]) -> list[tuple[int, int]]:
    """Return pairs of a variable's address and the address of an instruction's byte that refers to
    it."""
    found: list[tuple[int, int]] = []
    low, high = min(wanted), max(wanted)
    if module.text.end - module.text.start > _MAX_CODE:
        return found
    for piece in target.pieces(*module.text):
        for first in range(0, len(piece.data), _SLICE):
            if target.interrupted():
                raise Interrupted
            data = bytes(piece.data[first : first + _SLICE + 4])
            for place, address in _operands(data, piece.address + first):
                if low - 4 <= address <= high:
                    found += [(address + more, place) for more in _CONSTANTS if address + more in wanted]
    return found


def _operands(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of the address of a byte that may precede a distance, and the address to which
    the distance leads if no constant follows it. `start`: the address of the code."""
    for match in _RELATIVE.finditer(code):
        place = start + match.start()
        yield place, place + 5 + struct.unpack("<i", match[1])[0]


def _name_functions(table: FunctionTable, places: Sequence[int]) -> list[str]:
    found = (table.places(place) for place in places)
    return [named[0].function for named in found if named]


def _rank(names: Sequence[str]) -> list[str]:
    own = [name for name in names if not name.startswith("runtime.")] or list(names)
    return sorted(dict.fromkeys(own), key=lambda name: (name.endswith(".init"), -own.count(name), name))[:_MOST_NAMES]
