"""Seccomp filters: evaluated by findleaks, and compared with Linux."""

from __future__ import annotations

import ctypes
import os
import struct

from hypothesis import given
from hypothesis import strategies as st

from findleaks.injection.seccomp import ALLOW, KILL, LOG, Step, is_allowed, program, verdict

ERRNO, TRAP = 0x00050000, 0x00030000
LOAD_NUMBER, LOAD_ARCH = Step(0x20, 0, 0, 0), Step(0x20, 0, 0, 4)


def returns(value: int) -> Step:
    return Step(0x06, 0, 0, value)


def test_typical_filters() -> None:
    listed = [
        LOAD_ARCH,
        Step(0x15, 1, 0, 0xC000003E),
        returns(KILL),
        LOAD_NUMBER,
        Step(0x35, 0, 1, 0x40000000),  # the x32 calls
        returns(KILL),
        Step(0x15, 2, 0, 9),
        Step(0x15, 3, 0, 11),
        returns(ERRNO | 1),
        Step(0x20, 0, 0, 16 + 8 * 2),  # mmap's protection
        Step(0x45, 1, 0, 4),
        returns(ALLOW),
        returns(TRAP),
    ]
    assert is_allowed([listed], 9, 0x1000, [0, 4096, 3, 0x22])
    assert not is_allowed([listed], 9, 0x1000, [0, 4096, 5, 0x22])
    assert is_allowed([listed], 11, 0x1000, [0, 4096])
    assert not is_allowed([listed], 28, 0x1000, [])
    assert not is_allowed([listed], 0x40000009, 0x1000, [])
    assert is_allowed([[returns(ALLOW)], [returns(LOG)]], 1, 0, [])
    assert not is_allowed([[returns(ALLOW)], [returns(ERRNO)]], 1, 0, [])


def test_arithmetic_memory_and_arguments() -> None:
    data = bytes(range(64))
    low = int.from_bytes(data[16:20], "little")
    steps = [Step(0x20, 0, 0, 16), Step(0x02, 0, 0, 3), Step(0x01, 0, 0, 7), Step(0x0C, 0, 0, 0), Step(0x07, 0, 0, 0), Step(0x60, 0, 0, 3)]
    assert verdict([*steps, Step(0xAC, 0, 0, 0), Step(0x16, 0, 0, 0)], data) == low ^ (low + 7)
    assert verdict([Step(0x80, 0, 0, 0), Step(0x16, 0, 0, 0)], data) == 64
    assert verdict([Step(0x00, 0, 0, 5), Step(0x84, 0, 0, 0), Step(0x16, 0, 0, 0)], data) == (1 << 32) - 5


def test_invalid_filters_are_refused() -> None:
    for steps in (
        [],
        [Step(0x05, 0, 0, 99)],
        [Step(0x20, 0, 0, 61), returns(ALLOW)],
        [LOAD_NUMBER],
        [Step(0x60, 0, 0, 16), returns(ALLOW)],
    ):
        assert verdict(steps, bytes(64)) == KILL
    assert program(struct.pack("<HBBI", 0x15, 1, 2, 3)) == [Step(0x15, 1, 2, 3)]


@given(
    st.lists(st.builds(Step, st.integers(0, 255), st.integers(0, 9), st.integers(0, 9), st.integers(0, 70)), max_size=30),
    st.binary(min_size=64, max_size=64),
)
def test_any_program_ends(steps: list[Step], data: bytes) -> None:
    assert 0 <= verdict(steps, data) < 1 << 32


def test_filters_agree_with_linux() -> None:
    """A child process installs a filter. Each result of the filter is an errno that identifies the path through it."""
    steps = [
        Step(0x20, 0, 0, 16),
        Step(0x54, 0, 0, 0xFF),
        Step(0x24, 0, 0, 3),
        Step(0x25, 2, 0, 300),
        Step(0x15, 0, 2, 30),
        returns(ERRNO | 11),
        returns(ERRNO | 22),
        LOAD_NUMBER,
        Step(0x15, 0, 1, 500),
        returns(ERRNO | 33),
        returns(ALLOW),
    ]
    values = [0, 10, 100, 101, 255, 266, 0x10A]
    wanted = []
    for value in values:
        answer = verdict(steps, struct.pack("<iIQ6Q", 500, 0xC000003E, 0, value, 0, 0, 0, 0, 0))
        wanted.append(answer & 0xFFFF)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            found = []
            libc.prctl(38, 1, 0, 0, 0)
            check = [Step(0x20, 0, 0, 0), Step(0x15, 0, len(steps), 500)]  # other calls pass
            code = b"".join(struct.pack("<HBBI", *step) for step in [*check, *steps, returns(ALLOW)])
            buffer = ctypes.create_string_buffer(code, len(code))
            fprog = struct.pack("<HxxxxxxQ", len(check) + len(steps) + 1, ctypes.addressof(buffer))
            if libc.prctl(22, 2, fprog, 0, 0):
                os._exit(1)
            for value in values:
                ctypes.set_errno(0)
                libc.syscall(ctypes.c_long(500), ctypes.c_long(value))
                found.append(ctypes.get_errno())
            os.write(writing, repr(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    reported = os.read(reading, 1000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    assert reported == repr(wanted)
    assert len(set(wanted)) == 3
