"""Reads Ruby (CRuby 2.7 to 3.3): heap pages, the collector's counters, objects by type and class,
and native memory reported to the collector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

MARK = "ruby"  # in a loaded file's path: the program, libruby or a standard library extension
HEAP = ManagedHeap(("libruby",), "Ruby")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find a Ruby interpreter; see base.Finder."""
    files = [module for module in target.modules() if MARK in module.path.lower()]
    if not files:
        return []
    from findleaks.runtimes.ruby.layout import interpreter

    layout = interpreter(target, files)
    if layout is None:
        return []
    from findleaks.runtimes.ruby.instance import Ruby

    return [Ruby(target, engine, directory, layout)]
