"""A process behind a remote stub (gdbserver), whose memory is read with GDB's API."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gdb
from findleaks.gdb.target import print_command, sysroot, threads
from findleaks.target.arch import Arch
from findleaks.target.base import Region, Thread
from findleaks.target.maps import regions_of
from findleaks.target.remote import RemoteTarget

_LINE = re.compile(
    r"^\s*0x(?P<start>[0-9a-f]+)\s+0x(?P<end>[0-9a-f]+)\s+0x[0-9a-f]+\s+0x(?P<offset>[0-9a-f]+)\s+(?P<mode>[r-][w-][x-][ps])\s*(?P<name>.*?)\s*$"
)


def open_remote(pid: int, inferior: Any) -> RemoteTarget:
    """Open the process of this inferior as a target."""

    def read(address: int, size: int) -> bytes:
        try:
            return bytes(inferior.read_memory(address, size))
        except gdb.MemoryError:
            return b""

    def all_threads(arch: Arch) -> Sequence[Thread]:
        return list(threads(inferior, arch))

    return RemoteTarget(pid, regions(pid), read, all_threads, "behind GDB's remote target", sysroot())


def regions(pid: int) -> list[Region]:
    """Mapped regions: the kernel's list, read through the stub, or if that fails GDB's list (with
    permissions since GDB 12); [] if both fail."""
    return regions_of(_fetch(f"/proc/{pid}/maps")) or _read_shown()


def _fetch(path: str) -> bytes:
    """The content of a file on the other machine; b"" if it cannot be fetched."""
    descriptor, local = tempfile.mkstemp(prefix="findleaks-")
    os.close(descriptor)
    try:
        gdb.execute(f"remote get {path} {local}", to_string=True)
        return Path(local).read_bytes()
    except (gdb.error, OSError):
        return b""
    finally:
        Path(local).unlink()


def _read_shown() -> list[Region]:
    """The regions that GDB prints, in the form of /proc/PID/maps."""
    try:
        text = print_command("info proc mappings")
    except gdb.error:
        return []
    matches = filter(None, map(_LINE.match, text.split("\n")))
    maps = "\n".join("{start}-{end} {mode} {offset} 0 0 {name}".format(**match.groupdict()) for match in matches)
    return regions_of(maps.encode("utf-8", "surrogateescape"))
