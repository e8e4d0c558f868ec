"""The managed runtimes found in a target."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Finder, Finding, Runtime
    from findleaks.runtimes.managed_heap import ManagedHeap
    from findleaks.target.base import Target

FINDERS: tuple[str, ...] = (
    "findleaks.runtimes.cpython",
    "findleaks.runtimes.ruby",
    "findleaks.runtimes.jvm",
    "findleaks.runtimes.node",
    "findleaks.runtimes.go",
)
"""Modules with `find(target, engine, directory)`; add new runtimes here.

A module may also have `HEAP`, a ManagedHeap, and `findings(target)`, which reports problems that
are visible without reading the heap, and `find_scheduler(target, engine)`, see find_schedulers."""


def known() -> list[str]:
    """Return the names of the runtimes that can be read."""
    return [finder.rsplit(".", 1)[-1] for finder in FINDERS]


def findings(target: Target) -> Iterator[Finding]:
    """Yield problems that the runtimes' modules find."""
    for module in map(importlib.import_module, FINDERS):
        yield from getattr(module, "findings", lambda target: ())(target)


def heap_owners(files: Sequence[str], allocators: Collection[str]) -> list[str]:
    """Return the owners of managed heaps that none of these allocators serves. `files` are the base
    names of loaded files."""
    heaps: list[ManagedHeap] = [module.HEAP for module in map(importlib.import_module, FINDERS) if hasattr(module, "HEAP")]
    found = {heap.owner for heap in heaps if heap.allocator not in allocators and any(file.startswith(heap.files) for file in files)}
    return sorted(found, reverse=True)  # the JVM, V8, Ruby, CPython


def find(target: Target, engine: Engine, directory: Directory, names: Sequence[str] = ()) -> list[Runtime]:
    """Return the runtimes in the process: all, or those whose module has one of `names`."""
    found: list[Runtime] = []
    for module in FINDERS:
        if not names or module.rsplit(".", 1)[-1] in names:
            finder: Finder = importlib.import_module(module).find
            found += finder(target, engine, directory)
    return found


def find_schedulers(target: Target, engine: Engine) -> list[Runtime]:
    """Return the runtimes that schedule threads themselves. No heap of an allocator is read.

    Their modules have `find_scheduler(target, engine)`."""
    modules = map(importlib.import_module, FINDERS)
    return [one for module in modules if hasattr(module, "find_scheduler") for one in module.find_scheduler(target, engine)]
