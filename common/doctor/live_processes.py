"""Check whether this user may read live processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from findleaks.results.environment import Check
from findleaks.target.files import read_file

AREA = "live processes"
CAP_SYS_PTRACE = 19  # include/uapi/linux/capability.h
_SECCOMP_FILTER = "2"  # field Seccomp of /proc/PID/status, proc(5)


def check_live_processes(status: Mapping[str, str], root: str = "/") -> Iterator[Check]:
    """Check ptrace and /proc. `status`: the lines of /proc/self/status. `root`: the directory that
    contains proc/ and sys/. Tests pass another one."""
    privileged = bool(int(status.get("CapEff", "0") or "0", 16) >> CAP_SYS_PTRACE & 1)
    yield check_ptrace(privileged, read_line(root, "proc/sys/kernel/yama/ptrace_scope"))
    if status.get("Seccomp") == _SECCOMP_FILTER:
        detail = "a seccomp filter is active, as in containers; it may refuse ptrace"
        yield Check(AREA, "seccomp", "limited", detail, "docker run --cap-add SYS_PTRACE --security-opt seccomp=unconfined …")
    yield from check_container(root)


def check_ptrace(privileged: bool, scope: str) -> Check:
    """Describe which processes this user may trace. `scope`: kernel.yama.ptrace_scope; "" without
    Yama."""
    if scope == "3":
        detail = "ptrace is disabled until reboot (kernel.yama.ptrace_scope = 3); only cores can be read"
        return Check(AREA, "ptrace", "failed", detail, "gcore is refused too: let the kernel dump a core, kill -ABRT PID")
    if privileged:
        return Check(AREA, "ptrace", "ok", "this user may read all processes (CAP_SYS_PTRACE)", "")
    if scope in ("", "0"):
        return Check(AREA, "ptrace", "limited", "this user may read their own processes only", "run as root for others: sudo findleaks …")
    if scope == "1":
        detail = "this user may read their child processes only (kernel.yama.ptrace_scope = 1)"
        return Check(AREA, "ptrace", "limited", detail, "sudo sysctl kernel.yama.ptrace_scope=0, or run as root")
    detail = f"only root may read processes (kernel.yama.ptrace_scope = {scope})"
    return Check(AREA, "ptrace", "limited", detail, "run as root: sudo findleaks …")


def check_container(root: str) -> Iterator[Check]:
    """Describe the memory limit of this control group, because a copy of a process counts towards
    this limit."""
    limit, used = read_line(root, "sys/fs/cgroup/memory.max"), read_line(root, "sys/fs/cgroup/memory.current")
    if not limit.isdigit():
        limit, used = (read_line(root, f"sys/fs/cgroup/memory/memory.{name}") for name in ("limit_in_bytes", "usage_in_bytes"))
    # Version 1 of control groups writes a huge number if there is no limit
    if not limit.isdigit() or int(limit) >= 1 << 60:
        return
    free = max(int(limit) - (int(used) if used.isdigit() else 0), 0)
    detail = f"the control group allows {int(limit) >> 20} MiB, {free >> 20} MiB of it unused; a copy of a live process counts towards it"
    yield Check(AREA, "memory limit", "ok", detail, "")


def read_line(root: str, path: str) -> str:
    """Return the text of a short file, without the line end; "" if it cannot be read."""
    try:
        return read_file(os.path.join(root, path)).decode("utf-8", "replace").strip()
    except OSError:
        return ""
