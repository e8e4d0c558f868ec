"""Read HotSpot, the JVM of OpenJDK: its heap, code cache, metaspace, thread stacks, and data of
NMT.

All offsets come from the tables that libjvm exports for the serviceability agent
(gHotSpotVMStructs). These tables lack Native Memory Tracking (NMT) and metaspace, which are found
with symbols of libjvm, unless libjvm was stripped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Module, Target
    from findleaks.unwind.managed_frames import ManagedFrames

TABLE = "gHotSpotVMStructs"

HEAP = ManagedHeap(("libjvm",), "the JVM")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Search for a loaded libjvm; see base.Finder."""
    module = _find_module(target)
    if module is None:
        return []
    from findleaks.runtimes.jvm.instance import HotSpot

    return [HotSpot(target, engine, directory, module)]


def find_frames(target: Target) -> Optional[ManagedFrames]:
    """Find the frames of Java methods; see directory.find_frames."""
    module = _find_module(target)
    if module is None:
        return None
    from findleaks.runtimes.jvm.frames.reader import find_frame_reader

    return find_frame_reader(target, module)


def find_scheduler(target: Target, engine: Engine) -> Sequence[Runtime]:
    """Find the virtual threads; see directory.find_schedulers."""
    module = _find_module(target)
    if module is None:
        return []
    from findleaks.runtimes.jvm.virtual_threads import VirtualThreads

    return [VirtualThreads(target, engine, module)]


def _find_module(target: Target) -> Optional[Module]:
    """Return a loaded libjvm that describes itself."""
    module = next((module for module in target.modules() if os.path.basename(module.path).startswith("libjvm")), None)
    if module is None or target.symbol(TABLE, os.path.basename(module.path)) is None:
        return None
    return module
