"""One HotSpot in a process."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.sites import Recording
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.base import Count, Part, Runtime, Site
from findleaks.runtimes.jvm import parts, spaces, tracked_blocks, tracking
from findleaks.runtimes.jvm.classes import ClassCounts, count_classes
from findleaks.runtimes.jvm.concurrent import ConcurrentHeap, concurrent_heap
from findleaks.runtimes.jvm.spaces import Dead, Space
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import java_stacks
from findleaks.runtimes.jvm.tracking import Tracking
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import merge_ranges

TRIM = "System.trim_native_heap"


class HotSpot(Runtime):
    """See Runtime. Java objects are not read: jcmd prints their class histogram."""

    name = "JVM"

    def __init__(self, target: Target, engine: Engine, directory: Directory, module: Module) -> None:
        self.where = os.path.basename(module.path)
        self.problems: list[Problem] = []
        self._target, self._module = target, module
        self._engine, self._directory = engine, directory
        self._tables = Tables(target, module)
        if not self._tables.fields:
            self.problems.append(
                Problem(module.start, f"{self.where}: its table of structures cannot be read, and so nothing of the JVM", False)
            )
        self.version = self._version()

    def _version(self) -> str:
        """The version, such as "17.0.15+6-Debian-1deb12u1"."""
        text = self._tables.word("Abstract_VM_Version", "_s_vm_release")
        release = self._tables.text(text) if text else ""
        if release:
            return release
        major = self._tables.int32("Abstract_VM_Version", "_vm_major_version")
        return str(major) if major else ""

    @cached_property
    def _parts(self) -> list[Part]:
        return parts.parts(self._tables, self._spaces, self._concurrent)

    @cached_property
    def _concurrent(self) -> Optional[ConcurrentHeap]:
        return concurrent_heap(self._tables)

    @cached_property
    def _spaces(self) -> list[Space]:
        return spaces.spaces(self._tables, self._engine)

    @cached_property
    def _dead(self) -> list[Dead]:
        return spaces.dead(self._tables, self._engine, self._spaces)

    @cached_property
    def classes(self) -> Optional[ClassCounts]:
        """The number of class loaders and classes; None if it is unknown."""
        return count_classes(self._tables)

    @cached_property
    def tracked(self) -> Optional[Tracking]:
        """The counts of NMT; None if it is off or cannot be read."""
        return tracking.tracking(self._tables)

    def parts(self) -> Sequence[Part]:
        return self._parts

    def reserved(self) -> Sequence[Range]:
        return parts.reserved(self._tables, self._concurrent)

    def counters(self) -> Mapping[str, Count]:
        """See Runtime: `jcmd PID VM.native_memory scale=b` prints the same, if NMT is on."""
        found: dict[str, Count] = {}
        heap = self._tables.word("Universe", "_collectedHeap")
        collections = self._tables.int32("CollectedHeap", "_total_collections", heap or 0)
        # Shenandoah counts its collections in another structure.
        if collections is not None and (self._concurrent is None or self._concurrent.collector == "ZGC"):
            found["collections"] = Count(collections)
        active = spaces.collecting(self._tables)
        if active and not self.problems:
            self.problems.append(
                Problem(active, "the JVM was stopped in the middle of a collection: what is in use of its heap is in flux", False)
            )
        if self.classes is not None:
            found["class loaders"] = Count(self.classes.loaders)
            found["classes"] = Count(self.classes.classes)
        found["Java threads"] = Count(sum(1 for _ in java_stacks(self._tables)))
        blocks = self._directory.blocks
        used = blocks.totals(State.IN_USE).bytes
        found["malloc: in use"] = Count(used, "bytes")
        found["malloc: free and not returned"] = Count(blocks.totals(State.FREE).bytes + blocks.totals(State.CACHED).bytes, "bytes")
        if self.tracked is not None:
            # Blocks of Java libraries, agents, and all callers of malloc other than the JVM.
            found["malloc: in use, not counted by NMT"] = Count(max(0, used - self.tracked.malloc), "bytes")
            found["NMT: malloc, with headers"] = Count(self.tracked.malloc, "bytes")
            found["NMT: reserved"] = Count(self.tracked.reserved, "bytes")
            found["NMT: committed"] = Count(self.tracked.committed, "bytes")
            for kind in self.tracked.kinds:
                if kind.reserved:
                    found[f"NMT: {kind.name}, reserved"] = Count(kind.reserved, "bytes")
                    found[f"NMT: {kind.name}, committed"] = Count(kind.committed, "bytes")
        return found

    def sites(self) -> Sequence[Site]:
        """See Runtime: NMT's sites, if it records them."""
        return tracking.sites(self._tables) if self.recorded else []

    @property
    def recorded(self) -> bool:
        return self.tracked is not None and self.tracked.detailed

    def recordings(self) -> Sequence[Recording]:
        """See Runtime: NMT's recordings, if it has any."""
        if not self.recorded:
            return []
        found = tracked_blocks.recorded(self._tables, self._engine, self._directory.blocks)
        return [found] if found is not None else []

    def release_command(self, call: str) -> str:
        """See Runtime: a command of jcmd, since JDK 17.0.9 and 21.0.1 (JDK-8293114)."""
        return f"jcmd {self._target.pid or 'PID'} {TRIM}" if call == "malloc_trim(0)" and self._can_trim else ""

    @cached_property
    def _can_trim(self) -> bool:
        """Whether its library contains the command's name."""
        regions = [region for region in self._target.regions() if region.readable and not region.writable]
        mine = [region for region in regions if self._module.start <= region.start < self._module.end]
        pieces = (piece for region in mine for piece in self._target.pieces(region.start, region.end))
        return any(TRIM.encode() in bytes(piece.data) for piece in pieces)

    def describe(self, address: int) -> str:
        part = next((part for part in self._parts if any(start <= address < end for start, end in part.ranges)), None)
        if part is None:
            return ""
        at = bisect_right(self._dead, (address, self._tables.memory.arch.mask, "")) - 1
        unused = f", in {self._dead[at].what}: dead" if at >= 0 and address < self._dead[at].end else ""
        return f"{part.name} of the JVM{unused}"

    def dead(self) -> Sequence[Range]:
        """See Runtime: parts of the Java heap, if the collector is G1, Parallel or Serial."""
        return merge_ranges(Range(part.start, part.end) for part in self._dead)
