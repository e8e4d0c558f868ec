"""Find the threads that wait for a mutex of libc, and the thread that holds it.

A thread that waits is in the system call futex. The address of the futex is that of the mutex, or
of a member of it. The number of the thread that holds the mutex is another member. A word counts as
this number only if the futex has the value of a mutex for which a thread waits. This check is also
sufficient on machines where the registers do not show whether a thread is in a system call. Mutexes
that several processes share, and robust mutexes of glibc, are left out.

A mutex contains the number of a thread in the PID namespace of the process. If findleaks or GDB
reads a process of another namespace, such as that of a container, the threads have other numbers.
Therefore the number of the thread that waits must be in its own control block.

Sources: glibc sysdeps/nptl/bits/struct_mutex.h and struct_rwlock.h, nptl/pthread_mutex_lock.c and
pthread_rwlock_common.c; musl src/internal/pthread_impl.h; Linux include/uapi/linux/futex.h."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target, Thread
from findleaks.target.ranges import region_at
from findleaks.unwind.frame_locks import LOCK, FrameLock, LockWait
from findleaks.value_classes import NamedTuple

MUTEX, RWLOCK = "pthread_mutex_t", "pthread_rwlock_t"

# By architecture: the number of futex, and the registers of the call's number and of its first four
# arguments.
_CALLS = {X86_64.name: (202, "orig_rax", ("rdi", "rsi", "rdx", "r10")), AARCH64.name: (98, "x8", ("x0", "x1", "x2", "x3"))}
_PRIVATE, _CLOCK = 128, 256  # flags of the operation
_WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 0, 6, 9, 13
_CONTENDED = 2  # value of the lock of a mutex for which a thread may wait
# Bits of a lock: the number of the thread that holds it, and whether other threads wait
_TID, _HIGH = (1 << 30) - 1, 1 << 31
_MOST_NUMBER = 1 << 22  # highest number of a thread (PID_MAX_LIMIT of Linux)
# By architecture: the memory that contains the number of a thread, relative to its thread pointer
_CONTROL_BLOCKS = {X86_64.name: range(0x400), AARCH64.name: range(-0x1000, 0)}
_LIBC = re.compile(r"libc[.-]|libpthread[.-]|ld-musl|libc\.musl")  # base names of libc
_PRIVATE_LOCKS = "__lll_lock_wait_private"  # waits for locks of glibc's own data, such as a FILE
# Bits of a read-write lock that a thread locked for writing, and value of a futex of this lock
_WRITING, _AWAITED = 3, 3
_SHARED_KIND = 128


class MutexWait(NamedTuple):
    """A thread that waits for a mutex. `owner`: the number of the thread that locked the mutex.
    This thread may have ended. `has_limit`: whether the wait ends after some time."""

    thread: int
    type: str
    address: int
    owner: int
    has_limit: bool


class _Owner(NamedTuple):
    """The mutex at `address`, and the number of the thread that holds it."""

    type: str
    address: int
    owner: int


def find_mutex_waits(target: Target) -> list[MutexWait]:
    """Return the threads that wait for a mutex, in the order of the threads."""
    known = _CALLS.get(target.arch.name)
    if known is None:
        return []
    futex, number, arguments = known
    threads = {thread.tid for thread in target.threads()}
    found: list[MutexWait] = []
    for thread in target.threads():
        if thread.registers.get(number) != futex:
            continue
        place, operation, expected, limit = (thread.registers.get(name, 0) for name in arguments)
        kind = operation & ~(_PRIVATE | _CLOCK)
        if kind not in (_WAIT, _WAIT_BITSET, _LOCK_PI, _LOCK_PI2) or not operation & _PRIVATE:
            continue
        is_pi = kind in (_LOCK_PI, _LOCK_PI2)
        # Without a time limit, condition variables wait with _WAIT_BITSET, and mutexes with _WAIT.
        has_mutex = is_pi or kind == _WAIT or limit != 0
        held = _read_owner(target, place, expected & 0xFFFFFFFF, is_pi, has_mutex)
        if held is None or held.owner > _MOST_NUMBER or not _has_own_number(target, thread):
            continue
        is_alive = held.owner in threads
        if (is_alive or held.type == MUTEX) and _is_libc(target, thread.pc, is_alive):
            found.append(MutexWait(thread.tid, held.type, held.address, held.owner, limit != 0))
    return found


def find_lock_waits(target: Target) -> list[LockWait]:
    """Return the waits without a time limit, from which deadlocks are found."""
    return [LockWait(one.thread, describe_lock(target, one)) for one in find_mutex_waits(target) if not one.has_limit]


def group_by_lock(waits: Iterable[LockWait]) -> dict[int, list[LockWait]]:
    """Return the waits by the address of the lock."""
    found: dict[int, list[LockWait]] = {}
    for one in waits:
        found.setdefault(one.lock.address, []).append(one)
    return found


def describe_lock(target: Target, wait: MutexWait) -> FrameLock:
    """Return the mutex for which a thread waits, with the name of the variable that it is."""
    symbol = target.symbolize(wait.address)
    return FrameLock(LOCK, wait.type, wait.address, wait.owner, symbol.name if symbol is not None else "")


def _has_own_number(target: Target, thread: Thread) -> bool:
    """Whether libc has the same number for a thread as `target`. libc keeps it in the thread's
    control block."""
    within, pointer = _CONTROL_BLOCKS[target.arch.name], thread.thread_pointer
    region = region_at(target.regions(), pointer + max(within.start, -1))
    if not pointer or region is None:
        return False
    start, end = max(pointer + within.start, region.start), min(pointer + within.stop, region.end)
    return thread.tid in _words32(target, start & -4, max(end - start, 0) // 4)


def _is_libc(target: Target, pc: int, is_alive: bool) -> bool:
    """Whether a thread at `pc` may wait for a mutex of libc. Other locks, such as those of Rust and
    of Abseil, have other members, and call futex with syscall(). So have the locks of glibc's own
    data. If the owner is not a thread of this process, only code of libc is accepted."""
    symbol = target.symbolize(pc)
    if symbol is not None and symbol.name in ("syscall", _PRIVATE_LOCKS):
        return False
    if is_alive or (symbol is not None and "lll_lock_wait" in symbol.name):
        return True
    module = region_at(target.modules(), pc)
    return module is not None and _LIBC.match(module.path.rpartition("/")[2]) is not None


def _read_owner(target: Target, place: int, expected: int, is_pi: bool, has_mutex: bool) -> Optional[_Owner]:
    """Return the mutex that has its futex at `place`; None if it is not a mutex, or if its owner is
    unknown. `expected`: the value with which the thread began to wait. If the futex has another
    value, the thread is about to continue. `has_mutex`: False if only a read-write lock is
    possible."""
    words = _words32(target, place, 5) if has_mutex else ()
    if len(words) == 5 and 0 < words[2] <= _TID and not words[4] & _SHARED_KIND and words[4] < 1 << 10:
        lock, owner = words[0], words[2]
        is_normal = lock == expected == _CONTENDED
        has_number = is_pi and lock & _TID == owner
        if (is_normal and words[3] >= 1) or has_number:
            return _Owner(MUTEX, place, owner)
    for before in (8, 12):  # __wrphase_futex and __writers_futex
        words = _words32(target, place - before, 8)
        if len(words) == 8 and words[before // 4] == expected == _AWAITED and _is_locked_for_writing(words):
            return _Owner(RWLOCK, place - before, words[6])
    # musl: mutexes of type "normal" have no number
    words = _words32(target, place - 4, 3) if has_mutex else ()
    if len(words) == 3 and words[0] & 3 in (1, 2) and words[0] < 16 and words[1] & _HIGH and words[1] & _TID:
        # The third word is the number of threads that wait; it is unused in priority inheritance.
        if is_pi or (words[1] == expected and 1 <= words[2] <= _MOST_NUMBER):
            return _Owner(MUTEX, place - 4, words[1] & _TID)
    return None


def _is_locked_for_writing(words: tuple[int, ...]) -> bool:
    """Whether these words are a read-write lock of glibc that a thread locked for writing. A
    condition variable with a mutex after it may have a similar owner and kind, but other bits."""
    return words[0] & _WRITING == _WRITING and bool(words[2] & words[3] & 1) and 0 < words[6] <= _TID and not words[7] & 0xFF


def _words32(target: Target, address: int, count: int) -> tuple[int, ...]:
    try:
        return tuple(target.arch.words32(target.read(address, 4 * count)))
    except (UnreadableMemory, ValueError):
        return ()
