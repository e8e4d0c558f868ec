"""A wait for a futex counts as a wait for a mutex only if the words around the futex prove it."""

from __future__ import annotations

import struct
from typing import Optional

import pytest
from fake import FakeTarget

from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import Module, Symbol, Thread
from findleaks.unwind.mutex_waits import MUTEX, RWLOCK, find_mutex_waits

LOCK, BLOCK, CODE = 0x10000, 0x20000, 0x30000
WAIT, BITSET, LOCK_PI = 128, 128 | 256 | 9, 128 | 6
WAITED = 1 << 31


def find_wait(
    words: tuple[int, ...],
    at: int = 0,
    expected: int = 2,
    operation: int = WAIT,
    limit: int = 0,
    own: int = 7,
    function: str = "",
    arch: Arch = X86_64,
) -> Optional[tuple[str, int, int]]:
    """Return the type, address (relative to the first of `words`) and owner of the mutex for which thread 7 waits. Thread 1 is another
    thread of the process. The futex is the word with index `at`. The control block contains the number `own`."""
    data = struct.pack(f"<{len(words)}I", *words).rjust(len(words) * 4 + 64, b"\0") + bytes(64)
    place = LOCK + 64 + 4 * at
    is_x86 = arch is X86_64
    names = ("orig_rax", "rdi", "rsi", "rdx", "r10") if is_x86 else ("x8", "x0", "x1", "x2", "x3")
    registers = dict(zip(names, (202 if is_x86 else 98, place, operation, expected, limit)))
    pointer = BLOCK + 0x800
    block = bytearray(0x1000)
    struct.pack_into("<I", block, 0x800 + (720 if is_x86 else -1568), own)
    threads = [Thread(1, {}, 0, 0, 0), Thread(7, registers, 0, CODE + 8, pointer)]
    target = FakeTarget(
        {LOCK: data, BLOCK: bytes(block), CODE: bytes(64)},
        threads=threads,
        modules=[Module("/lib/libc.so.6", CODE, CODE, CODE + 64)],
        symbols=[Symbol(function, CODE, 64)] if function else [],
        arch=arch,
    )
    return next(((one.type, one.address - LOCK - 64, one.owner) for one in find_mutex_waits(target)), None)


NORMAL = (2, 0, 1, 1, 0)
# The writer is thread 1.
WRITTEN = (3, 0, 3, 3, 0, 0, 1, 0)
RECURSIVE = (1, WAITED | 1, 1)


@pytest.mark.parametrize("arch", [X86_64, AARCH64])
def test_mutexes(arch: Arch) -> None:
    assert find_wait(NORMAL, arch=arch) == (MUTEX, 0, 1)
    assert find_wait((2, 0, 99, 1, 0), arch=arch) == (MUTEX, 0, 99)  # its thread has ended
    assert find_wait((WAITED | 1, 0, 1, 1, 32), expected=0, operation=LOCK_PI, arch=arch) == (MUTEX, 0, 1)
    assert find_wait(WRITTEN, 2, 3, BITSET, arch=arch) == (RWLOCK, 0, 1)
    assert find_wait(WRITTEN, 3, 3, BITSET, arch=arch) == (RWLOCK, 0, 1)
    assert find_wait(RECURSIVE, 1, WAITED | 1, arch=arch) == (MUTEX, 0, 1)


def test_threads_of_another_namespace() -> None:
    """The mutex has the number of a thread in a container; the target has the numbers outside of it."""
    assert find_wait(NORMAL, own=2) is None
    assert find_wait(RECURSIVE, 1, WAITED | 1, own=2) is None


def test_threads_that_are_about_to_continue() -> None:
    assert find_wait((1, 0, 1, 1, 0)) is None
    assert find_wait((3, 0, 1, 3, 0, 0, 1, 0), 2, 3, BITSET) is None
    assert find_wait((1, 1, 1), 1, WAITED | 1) is None


def test_locks_of_glibc_itself() -> None:
    """The lock of a FILE is {lock, count, address of the owner}. The low half of the address may look like the number of a thread."""
    assert find_wait((2, 1, 0x13A1D740, 0x7F2F, 0), function="puts") is None
    assert find_wait((2, 1, 99, 0x7F2F, 0), function="__lll_lock_wait_private") is None


def test_condition_variables() -> None:
    """After a condition variable with a monotonic clock, a mutex for whose signal one thread waits has the number 1. Since glibc 2.41, the
    value of the futex is not always 0."""
    for signals in (0, 2, 3):
        #                __g1_orig_size, __wrefs, __g_signals, mutex: lock, count, owner, users, kind
        waiting = (0, 0, 4, 8 | 2, 0, signals, 0, 0, 0, 1, 0, 0)
        assert find_wait(waiting, 5, signals, BITSET) is None
        waiting = (0, 0, 4, 8 | 2, signals, 0, 1, 1, 1, 1, 1, 0)
        assert find_wait(waiting, 4, signals, BITSET) is None


def test_locks_of_musl() -> None:
    """A word before these locks may look like the type of a mutex."""
    assert find_wait((1, 0xFFFFFFFF, 0), 1, 0xFFFFFFFF) is None  # pthread_rwlock_t, locked for writing
    assert find_wait((1, WAITED | 2, 0), 1, WAITED | 2) is None  # a lock of libc, which has the number of waiting threads
