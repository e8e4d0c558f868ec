"""Check whether a crash leaves a core file, where it is written, and which memory it contains."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from findleaks.doctor.live_processes import read_line
from findleaks.results.environment import Check

AREA = "core dumps"
_ANONYMOUS_PRIVATE, _ANONYMOUS_SHARED, _ELF_HEADERS = 1, 2, 16  # core(5), coredump_filter


def check_core_dumps(root: str = "/") -> Iterator[Check]:
    """Check the limit of a core's size, where the kernel writes cores, and which mappings it
    includes. `root`: the directory that contains proc/. Tests pass another one."""
    pattern = read_line(root, "proc/sys/kernel/core_pattern")
    yield check_limit(resource.getrlimit(resource.RLIMIT_CORE)[0], pattern)
    yield check_pattern(pattern)
    yield check_filter(read_line(root, "proc/self/coredump_filter"))


def check_limit(limit: int, pattern: str) -> Check:
    """Describe RLIMIT_CORE. The kernel ignores this limit if cores are written to a pipe, except
    that 1 disables the dump."""
    if pattern.startswith("|") and limit != 1:
        return Check(AREA, "size limit", "ok", "the kernel writes cores to a program, which decides on their size", "")
    if limit == resource.RLIM_INFINITY:
        return Check(AREA, "size limit", "ok", "unlimited", "")
    if limit == 0:
        return Check(AREA, "size limit", "missing", "0: a crash leaves no core", "ulimit -c unlimited")
    return Check(AREA, "size limit", "limited", f"{limit} bytes: larger cores are truncated", "ulimit -c unlimited")


def check_pattern(pattern: str) -> Check:
    """Describe where the kernel writes cores."""
    if not pattern:
        return Check(AREA, "core_pattern", "missing", "empty: a crash leaves no core", "sudo sysctl kernel.core_pattern=core.%p")
    if not pattern.startswith("|"):
        where = "the working directory of the process" if "/" not in pattern else os.path.dirname(pattern)
        return Check(AREA, "core_pattern", "ok", f"cores are written as {pattern!r} in {where}", "")
    program = os.path.basename(pattern[1:].split(" ")[0])
    if program == "systemd-coredump":
        return Check(AREA, "core_pattern", "ok", "systemd-coredump keeps cores; it limits their size (coredump.conf)", "")
    if program == "apport":
        detail = "apport keeps cores of packaged programs only, in /var/crash"
        return Check(AREA, "core_pattern", "limited", detail, "sudo sysctl kernel.core_pattern=core.%p")
    return Check(AREA, "core_pattern", "limited", f"cores go to the program {program!r}, which decides where they are kept", "")


def check_filter(text: str) -> Check:
    """Describe /proc/self/coredump_filter, which child processes inherit."""
    try:
        chosen = int(text, 16)
    except ValueError:
        return Check(AREA, "coredump_filter", "limited", "not readable", "")
    absent = [
        name
        for bit, name in (
            (_ANONYMOUS_PRIVATE, "private anonymous memory, which contains heaps"),
            (_ANONYMOUS_SHARED, "shared anonymous memory"),
            (_ELF_HEADERS, "ELF headers, which contain build-ids"),
        )
        if not chosen & bit
    ]
    if not absent:
        return Check(AREA, "coredump_filter", "ok", f"{chosen:#x}: cores contain anonymous memory and ELF headers", "")
    detail = f"{chosen:#x}: cores do not contain {', '.join(absent)}"
    return Check(AREA, "coredump_filter", "limited", detail, "echo 0x33 > /proc/self/coredump_filter")
