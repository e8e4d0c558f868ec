"""Read Ruby (CRuby 2.7 to 3.4): heap pages, the collector's counters, objects by type and class,
and native memory that was reported to the collector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Module, Target
    from findleaks.unwind.managed_frames import ManagedFrames

MARK = "ruby"  # in a loaded file's path: the program, libruby or a standard library extension
HEAP = ManagedHeap(("libruby",), "Ruby")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find a Ruby interpreter; see base.Finder."""
    files = _find_files(target)
    if not files:
        return []
    from findleaks.runtimes.ruby.layout import interpreter

    layout = interpreter(target, files)
    if layout is None:
        return []
    from findleaks.runtimes.ruby.instance import Ruby

    return [Ruby(target, engine, directory, layout)]


def find_frames(target: Target) -> Optional[ManagedFrames]:
    """Find the frames of Ruby methods; see directory.find_frames."""
    files = _find_files(target)
    if not files:
        return None
    from findleaks.runtimes.ruby.frame_reader import find_frame_reader

    return find_frame_reader(target, files)


def _find_files(target: Target) -> list[Module]:
    return [module for module in target.modules() if MARK in module.path.lower()]
