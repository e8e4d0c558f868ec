"""CPython: objects by type, the collector's counters, interned strings, tracemalloc's tables,
without symbols.

An object is a block of pymalloc's, or of malloc's above 512 bytes or if PYTHONMALLOC says so.
In a free-threaded interpreter (3.13t and later) it is a block of its copy of mimalloc. Objects in
the interpreter's own data (static types, small integers, None) are not counted."""

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
    """See base.Finder."""
    for interpreter in interpreters(target, engine):
        from findleaks.runtimes.cpython.instance import CPython

        return [CPython(target, engine, directory, interpreter)]
    return []
