"""Stacks of calls in a process with a runtime whose frames can be recorded, such as the JVM or
CPython.

A return address alone does not determine an interpreted function. Therefore these stacks are
walked anew at each call, by the rules and with the words that the stub of `count --inject` uses,
and are named in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.injection.stub.proc_memory import ProcMemory
from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.stack_names import StackNames
from findleaks.injection.stub.table import EXACT
from findleaks.runtimes.directory import describe_code, find_frames
from findleaks.target.base import Target
from findleaks.target.control import BreakpointHost
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer


class WalkedStack(NamedTuple):
    """A stack, the address of the function that was called, and the number of calls. `end`: why the
    stack is incomplete, or ""."""

    address: int
    calls: int
    frames: tuple[NamedFrame, ...]
    end: str


class WalkedStacks:
    """The stacks of one process. Call `close` at the end."""

    def __init__(self, process: BreakpointHost, namer: Callable[[Target, Unwinder], Namer]) -> None:
        # The last table is made after the process has closed its memory.
        self._memory = ProcMemory(process.pid)
        self._memory.open()
        self._rules = Rules(process.open_target, process.pid, self._memory.read, lambda address: False, describe_code)
        self._names = StackNames(self._rules, namer)
        self._counts: Counter[tuple[tuple[int, ...], bool]] = Counter()

    def close(self) -> None:
        self._rules.close()
        self._memory.close()

    @property
    def warnings(self) -> Sequence[str]:
        """Why lines or names are missing, one line each."""
        return self._names.warnings

    @property
    def needs_thread_pointer(self) -> bool:
        return bool(self._rules.chain) or self._rules.names_frames

    def count(self, address: int, sp: int, fp: int, thread_pointer: int) -> None:
        """Count a call of the function at this address. A thread is stopped there. `thread_pointer`
        is 0 if it is not needed."""
        self._counts[self._rules.walk(address | EXACT, sp, fp, thread_pointer)] += 1

    def stacks(self) -> Iterator[WalkedStack]:
        """Yield each stack once."""
        self._rules.check()
        sums: Counter[tuple[tuple[int, ...], str]] = Counter()
        for (keys, is_broken), count in self._counts.items():
            sums[self._names.follow(keys, is_broken)] += count
        # Stacks with different keys may have the same names: a runtime may move the code of a
        # function, or compile the function again.
        named: Counter[tuple[int, tuple[NamedFrame, ...], str]] = Counter()
        for (keys, end), count in sums.items():
            named[keys[0] & ~EXACT, self._names.name_frames(keys), end] += count
        for (address, frames, end), count in named.items():
            yield WalkedStack(address, count, frames, end)


def has_managed_calls(target: Target) -> bool:
    """Return whether stacks of the process contain frames of a managed runtime that can be
    walked."""
    return any(reader.reads_calls for reader in find_frames(target))
