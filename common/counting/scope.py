"""Determine whether a thread is in a scope of a rule (V8 handle scopes, CPython's GIL, functions
that open and close a scope). This is read from the state of the process, or known from counting
opens and closes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from findleaks.counting.functions import Function, find_existing, find_functions
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.runtimes import gil
from findleaks.runtimes.rules import Rule
from findleaks.runtimes.v8.isolates import current, key_of
from findleaks.runtimes.v8.layout import Underivable, derive
from findleaks.target.arch import Arch
from findleaks.target.base import Target
from findleaks.target.control import BreakpointHost

# V8 handle scopes that are always open in callbacks: that of node::Start, or that of a worker
BASELINE = 1
# Maximum number of cached thread pointers; most belong to threads that have ended
MAX_THREADS = 10_000


class Scope(Protocol):
    """The scopes of a rule in one process: the breakpoints that they need, and the state at a
    breakpoint."""

    @property
    def breakpoints(self) -> Mapping[int, int]:
        """Return the addresses of breakpoints, and what each adds to a thread's depth: 1 or -1."""
        ...

    def step(self, thread: int, by: int) -> None:
        """Record that a thread opens (1) or closes (-1) a scope."""
        ...

    def outside(self, process: BreakpointHost) -> bool:
        """Whether the thread that stopped at the counted function is in no scope."""
        ...


def open_scope(rule: Rule, target: Target) -> Scope:
    """Return the scopes of a rule in a process. Raises TargetError if the rule does not work
    there."""
    if rule.state == "v8":
        return V8HandleScope(target)
    lock = gil.derive(target) if rule.state == "gil" else None
    if lock is not None:
        return GilScope(target.arch, lock)
    return Depth(rule, target)


class Depth:
    """Counts the depth of each thread. Closing a scope that was opened before counting began has no
    effect."""

    def __init__(self, rule: Rule, target: Target) -> None:
        self.breakpoints = {one.address: 1 for one in _find_existing(rule, target, rule.enter)}
        for one in _find_existing(rule, target, rule.leave):
            if self.breakpoints.get(one.address) == 1:
                raise TargetError(f"{one.name} both opens and closes the scope: the compiler merged the two functions")
            self.breakpoints[one.address] = -1
        self._depths: dict[int, int] = {}

    def step(self, thread: int, by: int) -> None:
        self._depths[thread] = max(0, self._depths.get(thread, 0) + by)

    def outside(self, process: BreakpointHost) -> bool:
        return not self._depths.get(process.thread())


def _find_existing(rule: Rule, target: Target, names: Sequence[str]) -> list[Function]:
    try:
        if rule.name:  # a built-in rule lists functions of all versions of a program
            return find_existing(target, names)
        return [one for name in names for one in find_functions(target, name)]
    except TargetError as error:
        raise TargetError(f"the rule {rule.name or rule.what} does not work on this process: {error}") from None


class ReadScope:
    """Reads the scope from the process's memory, without breakpoints. Thread pointers are
    cached."""

    def __init__(self, arch: Arch) -> None:
        self.breakpoints: dict[int, int] = {}
        self._arch = arch
        self._pointers: dict[int, int] = {}  # by thread

    def step(self, thread: int, by: int) -> None:
        """Never called, because there are no breakpoints."""

    def pointer(self, process: BreakpointHost) -> int:
        """Return the thread pointer of the stopped thread."""
        thread = process.thread()
        known = self._pointers.get(thread)
        if known is None:
            if len(self._pointers) > MAX_THREADS:
                self._pointers.clear()
            known = self._pointers[thread] = process.register(self._arch.debugger_name(self._arch.thread_pointer))
        return known

    def forget(self, thread: int) -> None:
        """Drop the cached pointer of a thread, because another thread may have its id by now."""
        self._pointers.pop(thread, None)


class V8HandleScope(ReadScope):
    """The level of V8's handle scopes in the thread's isolate. A thread without an isolate is not
    outside a scope."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.arch)
        try:
            self._layout = derive(target)
            self._key = key_of(target, self._layout)
        except (Underivable, UnreadableMemory) as error:
            raise TargetError(f"the rule v8 does not work on this process: {error}") from None

    def outside(self, process: BreakpointHost) -> bool:
        word = Words(process, self._arch)
        isolate = current(word, self._arch.mask, self._layout, self.pointer(process), self._key)
        if not isolate:
            self.forget(process.thread())
            return False
        return int.from_bytes(process.read(isolate + self._layout.level, 4), self._arch.byteorder) <= BASELINE


class GilScope(ReadScope):
    """Whether the thread holds CPython's global interpreter lock."""

    def __init__(self, arch: Arch, lock: gil.Lock) -> None:
        super().__init__(arch)
        self._lock = lock

    def outside(self, process: BreakpointHost) -> bool:
        word = Words(process, self._arch)
        if self._lock.is_held_by(word, self.pointer(process)):
            return False
        self.forget(process.thread())
        return not self._lock.is_held_by(word, self.pointer(process))


class Words:
    """Reads words of a process by address, without a cache. Raises UnreadableMemory."""

    def __init__(self, process: BreakpointHost, arch: Arch) -> None:
        self._read, self._arch = process.read, arch

    def __call__(self, address: int) -> int:
        data = self._read(address, self._arch.word)
        if len(data) < self._arch.word:
            raise UnreadableMemory(address, self._arch.word)
        return int.from_bytes(data, self._arch.byteorder)
