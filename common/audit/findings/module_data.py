"""Report large variables of the program or of a library. Variables are not blocks of an
allocator."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.forgotten_files import name_pattern
from findleaks.audit.findings.significance import is_large
from findleaks.formatting import number, shorten, size
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import Module, Range
from findleaks.target.modules import DELETED
from findleaks.target.ranges import subtract
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

_MANY = 32  # fewest libraries with similar names in a finding
_MOST_STEPS = 1 << 14  # addresses whose variable is looked up


class _Variable(NamedTuple):
    """A variable, or a page without a symbol (`name` is ""). `resident` is in bytes."""

    name: str
    address: int
    resident: int


def find_module_data(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if the variables of one file are at least a tenth of the memory. Yield no
    finding if residency is unknown, because the program may never have touched most pages of large
    variables."""
    if not accounting.known or session.presence is None:
        return
    resident = session.presence.resident
    data = {module: _data_of(session, module) for module in session.target.modules()}
    amounts = {module: sum(resident.bytes(start, end) for start, end in ranges) for module, ranges in data.items()}
    module = max(amounts, key=lambda one: amounts[one], default=None)
    if module is None or not is_large(amounts[module], accounting.total):
        yield from _find_alike_modules(session, accounting, amounts)
        return
    name = shorten(os.path.basename(module.path.removesuffix(DELETED)), 60)
    most = max(_variables(session, data[module], resident), key=lambda one: one.resident, default=None)
    title = f"In use, not leaked: variables of {name} take {size(amounts[module])}."
    cause = f"The largest is {shorten(most.name, 200)}, {size(most.resident)}." if most is not None and most.name else ""
    facts: dict[str, object] = {"module": module.path, "variable": most.name or None if most else None}
    facts["variable_bytes"] = most.resident if most is not None and most.name else None
    commands = (f"whatis {most.address:#x}",) if most is not None else ()
    yield Finding("module-data", amounts[module], title, cause, (), commands, facts, amounts[module])


def _find_alike_modules(session: Session, accounting: Accounting, amounts: Mapping[Module, int]) -> Iterator[Finding]:
    """Yield one finding if the variables of many libraries with similar names are at least a tenth
    of the memory."""
    groups: dict[str, list[Module]] = {}
    for module in amounts:
        groups.setdefault(name_pattern(module.path), []).append(module)
    alike = max(groups.values(), key=lambda group: sum(amounts[one] for one in group), default=[])
    total = sum(amounts[one] for one in alike)
    if len(alike) < _MANY or not is_large(total, accounting.total):
        return
    largest = max(alike, key=lambda one: amounts[one])
    pattern = shorten(name_pattern(largest.path), 200)
    title = f"In use, not leaked: variables of {number(len(alike))} libraries like {pattern} take {size(total)}."
    cause = "A library stays loaded until dlclose() was called as often as dlopen()."
    facts: dict[str, object] = {"module": largest.path, "modules": len(alike), "variable": None, "variable_bytes": None}
    commands = (*(["count dlopen"] if session.target.live else []), f"whatis {largest.start:#x}")
    yield Finding("module-data", total, title, cause, (), commands, facts, total)


def _data_of(session: Session, module: Module) -> list[Range]:
    """Return the writable private memory of a loaded file, except the heaps of allocators inside
    it."""
    regions = session.target.regions()
    data = [Range(one.start, one.end) for one in regions if module.start <= one.start < module.end and one.writable and one.private]
    return subtract(data, session.heap_ranges())


def _variables(session: Session, data: Sequence[Range], resident: Runs) -> Iterator[_Variable]:
    """Yield variables in resident memory, and pages without a symbol. The search advances by at
    least a page at a time, so it may skip variables that are smaller than a page."""
    target, steps = session.target, 0
    for start, end in data:
        for part in resident.within(start, end):
            at = part.start
            while at < part.end and steps < _MOST_STEPS:
                steps += 1
                symbol = target.symbolize(at)
                stop = symbol.address + symbol.size if symbol is not None else 0
                yield _Variable(symbol.name, symbol.address, resident.bytes(symbol.address, stop)) if symbol else _Variable("", at, 0)
                at = max(stop, at + target.arch.page)
