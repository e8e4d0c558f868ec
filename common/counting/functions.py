"""Find the addresses of functions of a process by name."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.demangle import demangle
from findleaks.errors import TargetError, UsageError
from findleaks.runtimes import jni
from findleaks.target.base import Target
from findleaks.target.elf import Table, text
from findleaks.unwind.stacks import NamedFrame, matches_function

# Maximum number of functions that a pattern may match, because each gets a breakpoint
MAX_FUNCTIONS = 64
# STT_FUNC; STT_GNU_IFUNC is not included, because its code runs only once, to select the function
_FUNCTION = 2
_SHN_ABS = 0xFFF1


class Function(NamedTuple):
    address: int
    name: str
    module: str


def find_functions(target: Target, pattern: str) -> list[Function]:
    """Return the functions with this name in all modules, by address. Raises TargetError if there
    is none.

    As in `stacks`, `pattern` is the whole name, the name without parameters, or its last part, with
    * and ?. It may also be the address (0x…) at which the function begins."""
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", pattern):
        return [_at(target, int(pattern, 16))]
    found: dict[int, Function] = {}
    for module in target.modules():
        name = module.path.rsplit("/", 1)[-1]
        for table in target.symbol_tables(module):
            for value, mangled in _candidates(table, pattern):
                function = demangle(mangled)
                if ".cold" not in mangled and matches_function(NamedFrame(0, function, 0, name), pattern):
                    found.setdefault(value + module.bias, Function(value + module.bias, function, name))
    if not found and pattern.startswith(jni.PREFIX):
        found = {where: Function(where, name, jni.MODULE) for name, where in jni.functions(target).items() if name == pattern}
    if not found:
        raise TargetError(f"no function {pattern!r} in any symbol table of the process; for a stripped file, give its address (0x…)")
    if len(found) > MAX_FUNCTIONS:
        raise UsageError(f"{pattern!r} matches {len(found):,} functions, more than {MAX_FUNCTIONS}; use a more specific name")
    return [found[address] for address in sorted(found)]


def find_existing(target: Target, patterns: Sequence[str]) -> list[Function]:
    """Return the functions that match the patterns. A pattern that matches nothing is ignored.
    Raises TargetError if no pattern matches."""
    found: list[Function] = []
    for pattern in patterns:
        try:
            found += find_functions(target, pattern)
        except TargetError:
            continue
    if not found:
        raise TargetError(f"no function {' nor '.join(patterns)} in any symbol table of the process")
    return found


def _at(target: Target, address: int) -> Function:
    region = next((region for region in target.regions() if address in region), None)
    if region is None or not region.executable:
        raise UsageError(f"{address:#x} is not code of the process")
    symbol = target.symbolize(address)
    return Function(address, symbol.name if symbol is not None else hex(address), symbol.module if symbol is not None else "")


def _candidates(table: Table, pattern: str) -> Iterator[tuple[int, str]]:
    """Yield (st_value, mangled name) of functions whose mangled name contains the last part of the
    pattern."""
    plain = pattern.split("(")[0]
    pieces = re.split(r"[^\w$.@]+", plain)
    needle = (pieces[-1] if pieces[-1] and not re.search(r"[*?]", plain) else max(pieces, key=len)).encode()
    if not needle:
        raise UsageError(f"{pattern!r} matches any function; use a more specific name")
    strings = table.strings
    starts: set[int] = set()
    at = strings.find(needle)
    while at >= 0:
        starts.update((strings.rfind(b"\0", 0, at) + 1, at))  # names share their ends
        at = strings.find(needle, at + 1)
    if not starts:
        return
    for row in struct.iter_unpack(table.form, table.symbols):
        if row[0] in starts:
            if table.wide:
                name, info, _, section, value, _ = row
            else:
                name, value, _, info, _, section = row
            if section not in (0, _SHN_ABS) and info & 15 == _FUNCTION:
                yield value, text(strings, name)
