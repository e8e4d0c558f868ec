"""Find out whether a lock that is a global variable may be a part of a larger variable."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.contract import Engine
from findleaks.runtimes.go.code_references import can_search, find_references
from findleaks.runtimes.go.packages import is_library
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.base import Target

_BEFORE = 1 << 10  # bytes of a structure before a lock in it


def is_alone(target: Target, engine: Engine, tables: Sequence[FunctionTable], lock: int) -> bool:
    """Whether neither code of the program nor a variable refers to memory shortly before a lock, so
    that no pointer to a larger variable leads to it. If the lock has a symbol, the memory from the
    symbol on is meant. Raises Interrupted."""
    symbol = target.symbolize(lock)
    start = symbol.address if symbol is not None else lock - _BEFORE
    if start == lock:
        return True
    for table in tables:
        module = table.module
        if not can_search(target, module):
            return False
        for _, place in find_references(target, module, frozenset(range(max(start, lock - _BEFORE), lock))):
            function = table.find(place)
            if function is None or not is_library(function.name):
                return False
        for first, last in (module.noptrdata, module.data):
            if any(len(engine.search(piece, start, lock)) for piece in target.pieces(first, last)):
                return False
    return True
