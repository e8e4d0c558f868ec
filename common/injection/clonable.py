"""Decide which processes can be cloned without harm, and explain why others cannot.

Sources: fork(2), open(2) (O_DIRECT), userfaultfd(2), pid_namespaces(7); Linux
Documentation/filesystems/proc.rst (VmFlags, fdinfo)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from findleaks.errors import TargetError
from findleaks.target.files import read_file
from findleaks.target.process import folder_of

NOT_COPIED = frozenset(("dc", "wf"))
"""VmFlags of memory that is missing from a clone (MADV_DONTFORK, MADV_WIPEONFORK)."""
_WATCHED = frozenset(("um", "uw", "ui"))  # VmFlags of memory that a userfaultfd handles
_O_DIRECT = 0o40000
_PINNED_SINCE = (6, 5)  # first Linux that pins pages of direct I/O, so that fork copies them


class Refused(TargetError):
    """Raised if the process cannot be cloned. The process is unharmed, and can be read without a
    clone."""


def refuse(pid: int, why: str) -> Refused:
    return Refused(f"pid {pid}: cannot be cloned: {why}; without --fork it is stopped while it is copied")


def check_clonable(pid: int) -> dict[int, set[str]]:
    """Return the flags of the mappings; the key is the start of a mapping.
    Raises Refused if a clone would harm the process."""
    if os.uname().machine != "x86_64":
        raise refuse(pid, "only x86-64 is supported")
    flags = dict(mapping_flags(pid))
    if any(found & _WATCHED for found in flags.values()):
        raise refuse(pid, "a userfaultfd handles its page faults, so the clone could wait for it forever")
    if not pages_are_pinned(os.uname().release) and _direct_files(pid):
        raise refuse(
            pid, "it has files open with O_DIRECT, and before Linux 6.5 a fork may lose data that the process reads from these files"
        )
    return flags


def pages_are_pinned(release: str) -> bool:
    """Whether fork(2) is harmless while direct I/O is in progress. `release`: the kernel's release
    ("6.1.0-30")."""
    words = release.split("-")[0].split(".")[:2]
    return all(word.isdigit() for word in words) and tuple(map(int, words)) >= _PINNED_SINCE


def mapping_flags(pid: int) -> Iterator[tuple[int, set[str]]]:
    start = 0
    try:
        lines = read_file(f"{folder_of(pid)}/smaps").split(b"\n")
    except OSError:
        return
    for line in lines:
        word, _, rest = line.partition(b" ")
        if word == b"VmFlags:":
            yield start, set(rest.decode("ascii", "replace").split())
        elif word[-1:] != b":" and b"-" in word:
            start = int(word.partition(b"-")[0], 16)


def _direct_files(pid: int) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return False
    for name in names:
        try:
            lines = read_file(f"/proc/{pid}/fdinfo/{name}").split(b"\n")
        except OSError:
            continue
        if any(line.startswith(b"flags:") and int(line.split()[1], 8) & _O_DIRECT for line in lines):
            return True
    return False


def unforkable(pid: int, tid: int) -> bool:
    """Whether children of the thread would be in another pid namespace. Such a namespace ends when
    its first process ends, and then the thread can no longer fork (pid_namespaces(7))."""
    folder = f"/proc/{pid}/task/{tid}/ns"
    return link(f"{folder}/pid_for_children") != link(f"{folder}/pid")


def clone_failure(error: int) -> str:
    """Explain why clone(2) failed."""
    if error == errno.EAGAIN:
        return "its limit of processes is reached (RLIMIT_NPROC, or pids.max of its control group)"
    if error == errno.ENOMEM:
        return "the system has too little memory"
    return f"clone: {os.strerror(error).lower()}"


def link(path: str) -> str:
    """Return the target of a symbolic link; "" if unreadable."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
