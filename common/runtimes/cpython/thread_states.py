"""Find the states of CPython's threads without a heap, from the interpreter's exported variables.

Sources: Include/internal/pycore_runtime.h (_PyRuntimeState) and pycore_interp.h of CPython 3.9 to
3.12 (PyInterpreterState); Include/internal/pycore_runtime.h of 3.13 and pycore_debug_offsets.h of
3.14 (_Py_DebugOffsets, with which _PyRuntime describes itself); Include/cpython/pystate.h
(PyThreadState: prev, next, interp)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.arch import I386, X86_64
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_COOKIE = b"xdebugpy"
_DESCRIBED = 10  # words of the description that are read
_MOST = 1 << 16  # interpreters, and threads
_NESTED = 16  # states of one thread, which may execute several interpreters
STATE_WORDS = 64  # words of a thread state in which its pthread_t is searched
_ABOVE = 1 << 12  # bytes from a thread's pthread_t to its thread pointer, at most


class Runtime(NamedTuple):
    """An interpreter in a file. `first` is the address of the pointer to the first interpreter's
    state. `following` and `threads` are offsets in such a state: of the pointer to the next one,
    and of the pointer to its first thread. `shift`: see pymalloc.Interpreter."""

    release: tuple[int, int]
    first: int
    following: int
    threads: int
    shift: int


_OFFSETS = {(3, 9): (32, 8), (3, 10): (32, 8), (3, 11): (40, 16), (3, 12): (40, 72)}
"""Offsets of interpreters.head in _PyRuntime, and of the first thread in an interpreter's state."""


def find_runtime(memory: Memory, symbol: int, release: tuple[int, int]) -> Optional[Runtime]:
    """Return the interpreter whose _PyRuntime is at `symbol`; None if its version is not known.
    `release` is the version according to the interpreter's data."""
    words = memory.words(symbol, _DESCRIBED) if memory.read(symbol, len(_COOKIE)) == _COOKIE else None
    if words is not None:
        described = (words[1] >> 24 & 0xFF, words[1] >> 16 & 0xFF)
        return Runtime(described, symbol + words[5], words[8], words[9], 16 if words[2] else 0)
    if release not in _OFFSETS:
        return None
    first, threads = _OFFSETS[release]
    return Runtime(release, symbol + first, 0, threads, 0)


def thread_states(target: Target, memory: Memory, runtime: Runtime) -> Mapping[int, Sequence[int]]:
    """Return the addresses of the states of each thread, by tid."""
    found: dict[int, list[int]] = {}
    pointers = sorted((one.thread_pointer, one.tid) for one in target.threads() if one.thread_pointer)
    for state in all_states(memory, runtime):
        tid = _tid(memory, state, pointers)
        if tid and len(found.setdefault(tid, [])) < _NESTED:
            found[tid].append(state)
    return found


def all_states(memory: Memory, runtime: Runtime) -> Iterator[int]:
    """Yield the address of the state of each thread."""
    seen: set[int] = set()
    interpreter = memory.word(runtime.first) or 0
    while interpreter and interpreter not in seen and len(seen) < _MOST:
        seen.add(interpreter)
        state = memory.word(interpreter + runtime.threads) or 0
        while state and state not in seen and len(seen) < _MOST:
            seen.add(state)
            words = memory.words(state, 3)
            if words is None or words[2] != interpreter:
                break
            yield state
            state = words[1]
        interpreter = memory.word(interpreter + runtime.following) or 0


def _tid(memory: Memory, state: int, pointers: Sequence[tuple[int, int]]) -> int:
    """Return the tid of the thread with this state; 0 if not found. The state has its pthread_t,
    which is the thread pointer on x86, and below it elsewhere."""
    above = 0 if memory.arch.name in (X86_64.name, I386.name) else _ABOVE
    for word in memory.words(state, STATE_WORDS) or ():
        at = bisect_left(pointers, (word, 0))
        if at < len(pointers) and pointers[at][0] - word <= above:
            return pointers[at][1]
    return 0
