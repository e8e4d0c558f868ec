"""Find the managed runtimes in a target."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators import directory as allocators
from findleaks.allocators.images import find_modules

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Finder, Runtime
    from findleaks.runtimes.finding import Finding
    from findleaks.runtimes.managed_heap import ManagedHeap
    from findleaks.target.base import Target
    from findleaks.unwind.code_tables import CodeTable
    from findleaks.unwind.managed_frames import CodeDescriptions, ManagedFrames

FINDERS: tuple[str, ...] = (
    "findleaks.runtimes.cpython",
    "findleaks.runtimes.ruby",
    "findleaks.runtimes.jvm",
    "findleaks.runtimes.node",
    "findleaks.runtimes.go",
    "findleaks.runtimes.php",
    "findleaks.runtimes.postgresql",
    "findleaks.runtimes.talloc",
    "findleaks.runtimes.apr",
    "findleaks.runtimes.perl",
    "findleaks.runtimes.lua",
    "findleaks.runtimes.glib",
    "findleaks.runtimes.nginx",
    "findleaks.runtimes.libuv",
    "findleaks.runtimes.obstack",
)
"""Modules with `find(target, engine, directory)`; add new runtimes here.

A module may also have `HEAP`, which is a ManagedHeap, and these functions: `findings(target)`
reports problems that are visible without reading the heap. For `find_scheduler(target, engine)`,
`has_tasks(target)` and `find_frames(target)`, see the functions find_schedulers, has_tasks and
find_frames below."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "findleaks.runtimes.php": allocators.ONLY_IN["findleaks.allocators.zend"],
    "findleaks.runtimes.postgresql": ("postgres", "postmaster", "edb-postgres"),
    "findleaks.runtimes.talloc": ("libtalloc",),
    "findleaks.runtimes.apr": ("libapr-1",),
    "findleaks.runtimes.lua": ("lua", "liblua5", "liblua.", "liblua-", "texlua", *allocators.ONLY_IN["findleaks.allocators.luajit"]),
    "findleaks.runtimes.glib": ("libglib-2.0",),
    "findleaks.runtimes.nginx": ("nginx", "openresty", "angie"),
    "findleaks.runtimes.libuv": ("libuv.so",),
    "findleaks.runtimes.perl": allocators.ONLY_IN["findleaks.allocators.perl"],
}
"""Prefixes of the names of the files that contain a runtime. The module of such a runtime is
imported only if a file with this prefix is loaded. Some runtimes have no entry."""


def list_known() -> list[str]:
    """Return the names of the runtimes that can be read."""
    return [finder.rsplit(".", 1)[-1] for finder in FINDERS]


def findings(target: Target) -> Iterator[Finding]:
    """Yield problems that the runtimes' modules find."""
    for module in map(importlib.import_module, FINDERS):
        yield from getattr(module, "findings", lambda target: ())(target)


def heap_owners(files: Sequence[str], allocators: Collection[str]) -> list[str]:
    """Return the owners of managed heaps that are not served by one of these allocators. `files`:
    the base names of loaded files."""
    heaps: list[ManagedHeap] = [module.HEAP for module in map(importlib.import_module, FINDERS) if hasattr(module, "HEAP")]
    found = {heap.owner for heap in heaps if heap.allocator not in allocators and any(file.startswith(heap.files) for file in files)}
    return sorted(found, reverse=True)  # the JVM, V8, Ruby, CPython


def find(target: Target, engine: Engine, directory: Directory) -> list[Runtime]:
    """Return the runtimes in the process."""
    found: list[Runtime] = []
    for module in FINDERS:
        if module in ONLY_IN and not find_modules(target, ONLY_IN[module]):
            continue
        finder: Finder = importlib.import_module(module).find
        made = finder(target, engine, directory)
        for one in made:
            one.module = module.rsplit(".", 1)[-1]
        found += made
    return found


def find_schedulers(target: Target, engine: Engine) -> list[Runtime]:
    """Return the runtimes that schedule threads themselves. No heap of an allocator is read.

    Their modules have `find_scheduler(target, engine)`."""
    modules = map(importlib.import_module, FINDERS)
    return [one for module in modules if hasattr(module, "find_scheduler") for one in module.find_scheduler(target, engine)]


def has_tasks(target: Target) -> bool:
    """Return whether a runtime in the process may have threads of its own that are found only by
    reading its heap. Their modules have `has_tasks(target)`."""
    modules = map(importlib.import_module, FINDERS)
    return any(module.has_tasks(target) for module in modules if hasattr(module, "has_tasks"))


def list_code_tables(runtimes: Iterable[Runtime]) -> list[CodeTable]:
    """Return the runtimes' descriptions of machine code without call frame information."""
    return [table for table in (one.code_table() for one in runtimes) if table is not None]


def code_tables_of(target: Target) -> list[CodeTable]:
    """Return the descriptions of `list_code_tables` before a session exists."""
    from findleaks.engine.load import load  # sessions have loaded the engine

    return list_code_tables(find_schedulers(target, load(target.arch)))


def describe_code(target: Target) -> CodeDescriptions:
    """Return the descriptions of code without call frame information that are needed to record the
    stacks of a running process."""
    from findleaks.unwind.managed_frames import CodeDescriptions

    return CodeDescriptions(code_tables_of(target), [reader for reader in find_frames(target) if reader.reads_calls])


def find_frames(target: Target) -> list[ManagedFrames]:
    """Return readers of the frames of managed functions. No heap of an allocator is read.

    Runtimes' modules have `find_frames(target)`, which returns a reader or None."""
    modules = map(importlib.import_module, FINDERS)
    found = (module.find_frames(target) for module in modules if hasattr(module, "find_frames"))
    return [one for one in found if one is not None]
