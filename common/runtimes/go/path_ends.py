"""Places where a path through the code of a function ends: calls of functions that never return,
such as those for an index that is out of range; and the code that grows the stack, which follows
the rest of the function. The start of the function branches to it, and nothing else leads to it.

Sources: Go 1.18 to 1.27, src/runtime/panic.go, panic*.s; src/cmd/internal/obj: x86/obj6.go and
arm64/obj7.go (stacksplit)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from findleaks.runtimes.go.machine_code import BRANCH, CALL, END, Step
from findleaks.runtimes.go.pclntab import FunctionTable, find_function

FATAL = re.compile(r"runtime\.(?:gopanic|goPanic\w+|panic\w*|throw|fatal|fatalthrow)$")
"""Functions that never return."""


_GROWTH = "runtime.morestack"


def end_paths(steps: Iterable[Step], tables: Sequence[FunctionTable]) -> list[Step]:
    """Return the steps of a function, with the end of a path in place of each call of a function
    that never returns, and before the code that grows the stack."""
    names: dict[int, str] = {}
    found, growth, first = list[Step](), 0, 0
    for step in steps:
        if step.kind == BRANCH and not first:
            first = step.number
        if step.kind == CALL and step.number:
            name = names.setdefault(step.number, _name_function(tables, step.number))
            if name.startswith(_GROWTH) and first <= step.address:
                growth = first
            step = step._replace(kind=END, number=0) if FATAL.match(name) else step
        found.append(step)
    at = next((at for at, step in enumerate(found) if step.address >= growth), 0) if growth else 0
    return [*found[:at], Step(growth - 1, END), *found[at:]] if at else found


def _name_function(tables: Sequence[FunctionTable], entry: int) -> str:
    found = find_function(tables, entry)
    return found[1].name if found is not None and found[1].entry == entry else ""
