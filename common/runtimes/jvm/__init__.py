"""Read HotSpot, the JVM of OpenJDK: its heap, code cache, metaspace, thread stacks, and data of
NMT.

All offsets come from the tables that libjvm exports for the serviceability agent
(gHotSpotVMStructs). These tables lack Native Memory Tracking (NMT) and metaspace, which are found
with symbols of libjvm, unless libjvm was stripped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

TABLE = "gHotSpotVMStructs"

HEAP = ManagedHeap(("libjvm",), "the JVM")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Search for a loaded libjvm; see base.Finder."""
    module = next((module for module in target.modules() if os.path.basename(module.path).startswith("libjvm")), None)
    if module is None or target.symbol(TABLE, os.path.basename(module.path)) is None:
        return []
    from findleaks.runtimes.jvm.instance import HotSpot

    return [HotSpot(target, engine, directory, module)]
