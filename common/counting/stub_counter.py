"""Count calls with a stub in front of the function, which the process itself executes.

The process is stopped only to install the stub, to make a table, and at the end."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Optional

from findleaks.counting.counter import CountRequest, StackCount, Table
from findleaks.counting.counting_code import CountingCode
from findleaks.counting.functions import Function, find_functions
from findleaks.counting.scope import BASELINE, Depth, open_scope
from findleaks.errors import TargetError, UnreadableMemory, UsageError
from findleaks.injection.stub.patcher import Stub
from findleaks.injection.stub.running_stub import RunningStub
from findleaks.injection.stub.stack_names import StackNames
from findleaks.injection.stub.table import EVENTS, EXACT, FULL, UNSURE, CountTable, Scoped, paths
from findleaks.libc.thread_specific import KEYS_OF_BLOCK, place_of_key
from findleaks.runtimes import gil
from findleaks.runtimes.directory import describe_code
from findleaks.runtimes.rules import Rule
from findleaks.runtimes.v8.isolates import key_of
from findleaks.runtimes.v8.layout import Layout as V8
from findleaks.runtimes.v8.layout import Underivable, derive
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost, Outcome
from findleaks.unwind.stacks import NamedFrame


class Injected:
    """Counts one function's calls with a stub. It has the interface of counter.Counter."""

    def __init__(self, host: InjectionHost, wanted: CountRequest) -> None:
        if wanted.when:
            raise UsageError("--when is evaluated by the debugger, not by a stub in the process; omit --inject")
        self.host, self.pid, self.wanted = host, host.pid, wanted
        self.functions: list[Function] = []
        self._running: Optional[RunningStub[CountTable]] = None
        self._v8: Optional[V8] = None
        self._code = CountingCode((), ())
        self._scoped = Scoped()
        self._names: Optional[StackNames] = None

    def prepare(self) -> None:
        """Plan the patches. Raises TargetError or UsageError with the reason if that is
        impossible."""
        self.host.begin()
        running: RunningStub[CountTable] = RunningStub(self.host, self._isolate, describe_code)
        self._running, self._names = running, StackNames(running.rules, self.wanted.namer)
        target = running.target
        if target.arch.name != X86_64.name:
            raise TargetError(f"--inject supports x86-64 only, not {target.arch.name}; omit it")
        self.functions = find_functions(target, self.wanted.function)
        steps: dict[int, int] = {}
        if self.wanted.rule is not None:
            steps = self._rule(self.wanted.rule, target)
        shared = [one for one in self.functions if one.address in steps]
        if shared:
            raise UsageError(f"{shared[0].name} itself opens or closes the scope, so this rule cannot count its calls")
        self._code = CountingCode(
            [(running.patch(one.address, one.name), one.address | EXACT) for one in self.functions],
            [(running.patch(address, _name(target, address)), by) for address, by in steps.items()],
        )

    def _rule(self, rule: Rule, target: Target) -> dict[int, int]:
        """Return the functions to patch so that the stub can test the scope. Each has the number
        that it adds to the depth."""
        if rule.state == "v8":
            try:
                self._v8 = derive(target)
                key = key_of(target, self._v8)
            except (Underivable, UnreadableMemory) as error:
                raise TargetError(f"the rule v8 does not work on this process: {error}") from None
            if not self._v8.tls and key >= KEYS_OF_BLOCK:
                raise TargetError(f"the isolate has the key {key}, which the stub does not support; omit --inject")
            self._scoped = Scoped(1, self._v8.tls or place_of_key(key), self._v8.level, BASELINE)
            return {}
        if rule.state == "gil":
            lock = gil.derive(target)
            if lock is not None and not lock.address and not lock.module:
                self._scoped = Scoped(3, lock.offset)
                return {}
        made = open_scope(rule, target)
        if not isinstance(made, Depth):
            raise TargetError(f"the rule {rule.name} cannot be tested by a stub in this process; omit --inject")
        self._scoped = Scoped(2)
        return dict(made.breakpoints)

    def _isolate(self, address: int) -> bool:
        """Whether a V8 isolate is at `address`: its implementer points back at it."""
        assert self._running is not None and self._v8 is not None
        memory = self._running.memory
        pointer = int.from_bytes(memory.read(address + self._v8.implementer, 8), "little")
        return int.from_bytes(memory.read(pointer, 8), "little") == address

    def tables(self) -> Generator[Table, None, None]:
        """Yield a table every `every` seconds, and a last one. The process is stopped while a table
        is used."""
        outcome = Outcome("stop")
        try:
            self.prepare()
            assert self._running is not None
            running = self._running
            self._start(running)
            began = time.monotonic()
            ticks = 0
            while True:
                elapsed = time.monotonic() - began
                ticks = max(ticks, int(elapsed / self.wanted.every)) + 1 if self.wanted.every else 0
                ends = [end for end in (self.wanted.seconds, ticks * self.wanted.every) if end]
                outcome = running.run(max(0.001, min(ends) - elapsed) if ends else None)
                elapsed = time.monotonic() - began
                finished = outcome.why != "time" or bool(self.wanted.seconds and elapsed >= self.wanted.seconds)
                if finished:
                    running.remove(outcome)
                yield self._now(running, elapsed, finished, outcome)
                if finished:
                    return
        finally:
            if self._running is None:
                self.host.close()
            else:
                try:
                    self._running.remove(outcome)
                finally:
                    self._running.close()

    def _start(self, running: RunningStub[CountTable]) -> None:
        def settings(layout: CountTable) -> bytes:
            return layout.settings(self._scoped, self.wanted.events, chain=running.rules.chain)

        def seeds(stub: Stub) -> dict[int, int]:
            return {key: running.rules.step(key).value for _, key in self._code.counted}

        running.start(self._code, CountTable(0), settings, seeds, self.wanted.events)

    def _now(self, running: RunningStub[CountTable], elapsed: float, finished: bool, outcome: Outcome) -> Table:
        assert self._names is not None
        layout = running.layout
        nodes = layout.read(running.read(layout.nodes_at, 32 * layout.nodes))
        rows: dict[tuple[tuple[int, ...], str], int] = {}
        lost = running.counter(FULL)
        with running.rules.lock:
            for node, keys in paths(nodes):
                if not keys:
                    lost += node.calls + node.broken
                    continue
                for count, broken in ((node.calls, False), (node.broken, True)):
                    if count:
                        key = self._names.follow(keys, broken)
                        rows[key] = rows.get(key, 0) + count
        # The lock is released after each stack, because threads of the process may wait for it, and
        # reading debug information may take long.
        named: dict[tuple[tuple[NamedFrame, ...], str], int] = {}
        for (keys, end), count in rows.items():
            with running.rules.lock:
                frames = self._names.name_frames(keys)
            # Stacks with different keys may have the same names; WalkedStacks.stacks explains why.
            named[frames, end] = named.get((frames, end), 0) + count
        stacks = [StackCount(count, frames, end) for (frames, end), count in named.items()]
        unsure, events = running.counter(UNSURE), running.counter(EVENTS)
        matched = sum(one.count for one in stacks) + lost
        # Without a scope, all calls match. If a signal handler forked a child while the thread was
        # in the stub, the child's call may have been counted as an event, but not in a stack.
        events = min(events, self.wanted.events or events) if self._scoped != Scoped() else matched + unsure
        stacks.sort(key=lambda one: -one.count)
        return Table(events, matched, elapsed, stacks, finished, outcome, lost, unsure, (*running.notes, *self._names.warnings))


def _name(target: Target, address: int) -> str:
    symbol = target.symbolize(address)
    return symbol.name if symbol is not None else hex(address)
