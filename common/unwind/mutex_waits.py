"""Find the threads that wait for a mutex of libc, and the thread that holds it.

A thread that waits is in the system call futex. The address of the futex is that of the mutex, or
of a member of it. The number of the thread that holds the mutex is another member. A word counts as
this number only if the futex has the value of a mutex for which a thread waits. This check is also
sufficient on machines where the registers do not show whether a thread is in a system call. Mutexes
that several processes share are left out.

Sources: glibc sysdeps/nptl/bits/struct_mutex.h and struct_rwlock.h, nptl/pthread_mutex_lock.c and
pthread_rwlock_common.c; musl src/internal/pthread_impl.h; Linux include/uapi/linux/futex.h."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target
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
_LIBC = re.compile(r"libc[.-]|libpthread[.-]|ld-musl|libc\.musl")  # base names of libc
_WRITER, _SHARED_KIND = 2, 128


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
        held = _read_owner(target, place, expected & 0xFFFFFFFF, kind in (_LOCK_PI, _LOCK_PI2))
        is_alive = held is not None and held.owner in threads
        if held is not None and (is_alive or held.type == MUTEX) and _is_libc(target, thread.pc, is_alive):
            found.append(MutexWait(thread.tid, held.type, held.address, held.owner, limit != 0))
    return found


def find_lock_waits(target: Target) -> list[LockWait]:
    """Return the waits without a time limit, from which deadlocks are found."""
    return [LockWait(one.thread, describe_lock(target, one)) for one in find_mutex_waits(target) if not one.has_limit]


def describe_lock(target: Target, wait: MutexWait) -> FrameLock:
    """Return the mutex for which a thread waits, with the name of the variable that it is."""
    symbol = target.symbolize(wait.address)
    return FrameLock(LOCK, wait.type, wait.address, wait.owner, symbol.name if symbol is not None else "")


def _is_libc(target: Target, pc: int, is_alive: bool) -> bool:
    """Whether a thread at `pc` may wait for a lock of libc. Other locks, such as those of Rust and
    of Abseil, have other members, and call futex with syscall(). If the owner is no thread of this
    process, only code of libc is accepted."""
    symbol = target.symbolize(pc)
    if symbol is not None and symbol.name == "syscall":
        return False
    if is_alive or (symbol is not None and "lll_lock_wait" in symbol.name):
        return True
    module = next((one for one in target.modules() if one.start <= pc < one.end), None)
    return module is not None and _LIBC.match(module.path.rpartition("/")[2]) is not None


def _read_owner(target: Target, place: int, expected: int, is_pi: bool) -> Optional[_Owner]:
    """Return the mutex that has its futex at `place`; None if it is not a mutex, or if its owner is
    unknown. `expected`: the value with which the thread began to wait."""
    words = _words32(target, place, 5)
    if len(words) == 5 and 0 < words[2] <= _TID and not words[4] & _SHARED_KIND and words[4] < 1 << 10:
        lock, owner = words[0], words[2]
        is_normal = lock == expected == _CONTENDED
        has_number = lock & _TID == owner and (is_pi or lock & _HIGH)
        if (is_normal and words[3] >= 1) or has_number:
            return _Owner(MUTEX, place, owner)
    for before in (8, 12):  # __wrphase_futex and __writers_futex
        words = _words32(target, place - before, 8)
        if len(words) == 8 and words[0] & _WRITER and 0 < words[6] <= _TID and not words[7] & 0xFF:
            return _Owner(RWLOCK, place - before, words[6])
    words = _words32(target, place - 4, 2)  # musl; mutexes of type "normal" have no number
    if len(words) == 2 and words[0] & 3 in (1, 2) and words[0] < 16 and words[1] & _HIGH and words[1] & _TID:
        return _Owner(MUTEX, place - 4, words[1] & _TID)
    return None


def _words32(target: Target, address: int, count: int) -> tuple[int, ...]:
    try:
        return tuple(target.arch.words32(target.read(address, 4 * count)))
    except (UnreadableMemory, ValueError):
        return ()
