"""Read the memory contexts of PostgreSQL 13 to 18: names, hierarchy, used and free memory.

A context takes blocks from malloc, divides them into chunks, and frees all of them at once. A
program need not free each chunk, so chunks without references are not reported as leaks."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import basename
from typing import TYPE_CHECKING

from findleaks.allocators.images import find_modules
from findleaks.runtimes.directory import ONLY_IN

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

ROOT = "TopMemoryContext"  # the exported variable that refers to the outermost context


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find the memory contexts of a PostgreSQL process; see base.Finder."""
    modules = find_modules(target, ONLY_IN[__name__])
    symbol = target.symbol(ROOT, basename(modules[0].path)) if modules else None
    if symbol is None or target.arch.word != 8:
        return []
    from findleaks.runtimes.postgresql.instance import PostgreSQL

    return [PostgreSQL(target, directory, modules[0], symbol.address)]
