"""Reads CPython without symbols: objects by type, the collector's counters, interned strings,
tracemalloc's tables.

An object is a block of pymalloc. It is a block of malloc above 512 bytes or if PYTHONMALLOC selects
malloc. In a free-threaded interpreter (3.13t and later) it is a block of the interpreter's copy of
mimalloc. Objects in the interpreter's own data (static types, small integers, None) are not
counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.pymalloc import interpreters
from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

HEAP = ManagedHeap(("libpython", "python"), "CPython", "pymalloc")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find CPython interpreters; see base.Finder."""
    for interpreter in interpreters(target, engine):
        from findleaks.runtimes.cpython.instance import CPython

        return [CPython(target, engine, directory, interpreter)]
    return []
