"""Read CPython without symbols: objects by type, the collector's counters, interned strings,
tracemalloc's tables.

An object is a block of pymalloc. It is a block of malloc if it is larger than 512 bytes, or if
PYTHONMALLOC selects malloc. In a free-threaded interpreter (3.13t and later) it is a block of the
interpreter's copy of mimalloc. Objects in the interpreter's own data (static types, small integers,
None) are not counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.pymalloc import interpreters
from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target
    from findleaks.unwind.managed_frames import ManagedFrames

MARK = "python"  # in a loaded file's path: the program, libpython or an extension module
TASKS = "_asyncio", "greenlet"
"""Parts of the file names of the extension modules with the types of tasks and greenlets."""

HEAP = ManagedHeap(("libpython", "python"), "CPython", "pymalloc")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find CPython interpreters; see base.Finder."""
    for interpreter in interpreters(target, engine):
        from findleaks.runtimes.cpython.instance import CPython

        return [CPython(target, engine, directory, interpreter)]
    return []


def has_tasks(target: Target) -> bool:
    """Return whether the process may have tasks of asyncio or greenlets, which are found by reading
    the heap."""
    is_loaded = any(name in module.path.rpartition("/")[2] for module in target.modules() for name in TASKS)
    return is_loaded or target.symbol(f"PyInit_{TASKS[0]}") is not None


def find_frames(target: Target) -> Optional[ManagedFrames]:
    """Find the frames of Python functions; see directory.find_frames."""
    if not any(MARK in module.path.lower() for module in target.modules()):
        return None
    from findleaks.runtimes.cpython.frame_reader import find_frame_reader

    return find_frame_reader(target)
