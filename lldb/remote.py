"""A process on another machine, which only LLDB's API can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lldb
from findleaks.debugger_session import NO_PROCESS
from findleaks.errors import TargetError
from findleaks.lldb.target import threads
from findleaks.target.arch import Arch
from findleaks.target.base import Region, Thread
from findleaks.target.ptrace import has_ended
from findleaks.target.remote import RemoteTarget


def open_remote(pid: int, process: Any, root: str) -> RemoteTarget:
    """Open this process as a target. `root`: the local folder with the files of its machine."""

    def read(address: int, size: int) -> bytes:
        error = lldb.SBError()
        # The result may be short without an error.
        data = process.ReadMemory(address, size, error)
        return bytes(data) if data else b""

    def all_threads(arch: Arch) -> Sequence[Thread]:
        found = list(threads(process, arch))
        unknown = sum(len(thread.words) <= len(thread.registers) for thread in found)
        if unknown:
            what = f"the vector registers of {unknown} thread{'' if unknown == 1 else 's'} are not known"
            target.warnings.append(f"{what} to {where}: blocks that are referenced only from them count as leaked")
        return found

    where = f"LLDB's {process.GetPluginName()}"
    mapped = regions(process)
    if not mapped and process.GetTarget().GetPlatform().GetName() == "host" and has_ended(pid):
        # The process was killed. LLDB notices this after a moment, or when it continues the
        # process.
        raise TargetError(NO_PROCESS)
    target = RemoteTarget(pid, mapped, read, all_threads, f"behind {where}", root, offsets=False)
    return target


def regions(process: Any) -> list[Region]:
    """Mapped regions that LLDB knows of."""
    known = process.GetMemoryRegions()
    found = []
    for index in range(known.GetSize()):
        info = lldb.SBMemoryRegionInfo()
        if known.GetMemoryRegionAtIndex(index, info) and info.IsMapped() and info.GetRegionEnd() > info.GetRegionBase():
            mode = (info.IsReadable(), info.IsWritable(), info.IsExecutable())
            found.append(Region(info.GetRegionBase(), info.GetRegionEnd(), *mode, info.GetName() or ""))
    return sorted(found, key=lambda region: region.start)
