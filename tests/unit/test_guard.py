"""The process that guards a process which a debugger changed. In these tests, it guards the test process."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import pytest

from findleaks.injection.stub import guard as guards
from findleaks.injection.stub.guard import Guard


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the guard more time to start, which it needs on a busy machine. These tests stop no process meanwhile."""
    monkeypatch.setattr(guards, "START_SECONDS", 180.0)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.open("/proc/self/mem", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_guard_restores_unchanged_memory(memory: int) -> None:
    """The guard restores memory when the pipe is closed. Words that have changed since are not restored."""
    code = ctypes.create_string_buffer(b"\xcc\xcc\x55", 3)
    at = ctypes.addressof(code)
    guard = Guard(os.getpid(), memory, [(at, b"\xcc", b"\x90"), (at + 1, b"\xcc", b"\x91"), (at + 2, b"\xcc", b"\x92")])
    process = guard.process
    assert process is not None
    assert code.raw == b"\xcc\xcc\x55"
    guard.leave()
    assert process.wait(180) == 0
    assert code.raw == b"\x90\x91\x55"


def test_dismissed_guard_does_nothing(memory: int) -> None:
    code = ctypes.create_string_buffer(b"\xcc", 1)
    guard = Guard(os.getpid(), memory, [(ctypes.addressof(code), b"\xcc", b"\x90")])
    process = guard.process
    assert process is not None
    guard.dismiss()
    guard.dismiss()
    assert process.returncode == 0
    assert code.raw == b"\xcc"


def test_a_killed_guard_has_no_effect(memory: int) -> None:
    guard = Guard(os.getpid(), memory, [(0x1000, b"\xcc", b"\x90")])
    assert guard.process is not None
    guard.process.kill()
    guard.process.wait(180)
    time.sleep(0.01)
    guard.dismiss()
