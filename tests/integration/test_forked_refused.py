"""If a process cannot be cloned, findleaks prints one line with the reason, and the process continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import building
import pytest
from forked import Watched, build, make_starter

from findleaks.errors import TargetError
from findleaks.injection import clonable, seized
from findleaks.injection.clonable import Refused, pages_are_pinned
from findleaks.injection.forked import fork
from findleaks.injection.held_clone import HeldClone

program = building.by(build)


@pytest.fixture
def watched(program: Path) -> Iterator[Callable[..., Watched]]:
    with make_starter(program) as make:
        yield make


def refusal(pid: int) -> str:
    with pytest.raises(TargetError) as caught:
        fork(pid)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, Refused):
        assert str(caught.value).endswith("; without --fork it is stopped while it is copied")
    return str(caught.value)


def test_seccomp(watched: Callable[..., Watched]) -> None:
    """A seccomp filter ends the process for one of the calls. findleaks detects the filter before it makes the call."""
    for number in (seized.CLONE, seized.WAIT4, seized.EXIT_GROUP):
        one = watched("forbids", str(number))
        assert f"seccomp, which does not permit system call {number};" in refusal(one.pid)
        assert one.unharmed()
    one = watched("forbids", str(seized.CLOSE))  # the filter allows close_range
    fork(one.pid).close()
    assert one.unharmed()
    one = watched("forbids", str(seized.CLOSE_RANGE))  # the filter allows unshare and close
    clone = HeldClone(one.pid, lambda part: None)
    try:
        assert os.listdir(f"/proc/{clone.taken.clone}/fd") == []
        assert one.looks()["files"]
    finally:
        clone.end()
    assert one.unharmed()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's process, and a pid namespace, which only root can make")
def test_limits_and_namespaces(watched: Callable[..., Watched]) -> None:
    one = watched("limited")
    assert "its limit of processes is reached (RLIMIT_NPROC" in refusal(one.pid)
    assert one.unharmed()
    one = watched("namespace")
    assert "its children would start a pid namespace" in refusal(one.pid)
    assert one.unharmed()


@pytest.mark.skipif(not pages_are_pinned(os.uname().release), reason="before Linux 6.4 that cannot be seen")
def test_dispatched_system_calls(watched: Callable[..., Watched]) -> None:
    one = watched("dispatched")
    assert "its system calls are dispatched to the process" in refusal(one.pid)
    assert one.unharmed()


def test_another_tracer_and_findleaks_itself(watched: Callable[..., Watched]) -> None:
    one = watched()
    clone = HeldClone(one.pid, lambda part: None)
    try:
        assert "already traced by python" in refusal(clone.taken.clone)
    finally:
        clone.end()
    assert "findleaks cannot stop itself" in refusal(os.getpid())
    assert one.unharmed()


def test_a_userfaultfd_is_refused() -> None:
    """The handler of the userfaultfd is a stopped thread of the process, and a fork may need an answer of this thread before it can end."""
    script = """if True:
        import ctypes, fcntl, mmap, struct, sys, time
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(323, 0o2000000 | 1)  # userfaultfd, UFFD_USER_MODE_ONLY
        memory = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            fcntl.ioctl(fd, 0xC018AA3F, bytearray(struct.pack("3Q", 0xAA, 0, 0)))  # UFFDIO_API
            at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            fcntl.ioctl(fd, 0xC020AA00, bytearray(struct.pack("4Q", at, 1 << 20, 1, 0)))  # UFFDIO_REGISTER, missing pages
            print("ready", flush=True)
        except OSError:
            print("none", flush=True)
        time.sleep(600)"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline() == "none\n":
            pytest.skip("this kernel has no userfaultfd")
        assert "a userfaultfd handles its page faults" in refusal(child.pid)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_direct_io_on_old_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"6.5.0": True, "6.18.44-fc": True, "7.0": True, "6.4.16": False, "5.10.0-30-amd64": False, "?": False}
    assert {release: pages_are_pinned(release) for release in releases} == releases
    monkeypatch.setattr(clonable, "pages_are_pinned", lambda release: False)
    (tmp_path / "file").touch()
    for flag in (0, os.O_DIRECT):
        with open(os.open(tmp_path / "file", os.O_RDONLY | flag)) as file:
            child = subprocess.Popen(["sleep", "600"], stdin=file)
        try:
            if flag:
                with pytest.raises(Refused, match="O_DIRECT"):
                    clonable.check_clonable(child.pid)
            else:
                assert clonable.check_clonable(child.pid)
        finally:
            child.kill()
            child.wait()
