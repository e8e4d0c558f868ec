"""Compute how much memory findleaks may use: limits of the system, control groups and rlimits.
Sources: Linux Documentation/filesystems/proc.rst (MemAvailable), admin-guide/cgroup-v2.rst
(memory.max, memory.high, memory.current, memory.stat), admin-guide/cgroup-v1/memory.rst,
getrlimit(2) (RLIMIT_AS, RLIMIT_DATA)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import Optional

# bytes; higher values mean no limit: cgroup v1 reports slightly less than 1 << 63
_UNLIMITED = 1 << 60
_V2 = (("memory.max", "memory.current"), ("memory.high", "memory.current"))
_V1 = (("memory.limit_in_bytes", "memory.usage_in_bytes"),)


def available_memory(proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> int:
    """Return the available memory in bytes. Limits that the system does not report are ignored."""
    found = [_UNLIMITED]
    fields = _fields(f"{proc}/meminfo")
    if "MemAvailable" in fields:
        found.append(fields["MemAvailable"] << 10)
    found += _groups(proc, groups)
    status = _fields(f"{proc}/self/status")
    for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            found.append(most - (status.get(field, 0) << 10))
    return max(0, min(found))


def _groups(proc: str, root: str) -> Iterator[int]:
    """Yield the bytes left in findleaks' control group and in each of its parents. Page cache that
    the kernel can drop counts as free."""
    for line in (_text(f"{proc}/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        pairs, base = (_V1, os.path.join(root, "memory")) if controllers else (_V2, root)
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(base, *parts[:depth])
            cache = _fields(f"{folder}/memory.stat", " ")
            for most, current in pairs:
                limit, used = _number(f"{folder}/{most}"), _number(f"{folder}/{current}")
                if limit is not None and used is not None and limit < _UNLIMITED:
                    yield limit - used + cache.get("total_inactive_file", cache.get("inactive_file", 0))


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _number(path: str) -> Optional[int]:
    """Return the number in a file; None if the file is missing or contains something else, such as
    "max"."""
    text = (_text(path) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(path: str, separator: str = ":") -> dict[str, int]:
    """Return the numbers of lines of the form "name: number", by name."""
    found = {}
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(separator)
        words = value.split()
        if words and words[0].isascii() and words[0].isdigit():
            found[name] = int(words[0])
    return found
