"""Counts calls by a stub in front of the function, which the process executes itself.

The process is stopped only for tables and at the end."""

from __future__ import annotations

import mmap
import time
from collections.abc import Generator, Sequence
from typing import Optional

from findleaks.counting.counter import Counted, Table, Wanted
from findleaks.counting.functions import Function, functions
from findleaks.counting.guard import Guard
from findleaks.counting.patcher import Plan, Stub, enable, install
from findleaks.counting.proc_memory import ProcMemory, writable_memory
from findleaks.counting.relocate import Patch, Refused, plan
from findleaks.counting.rule_server import Rules, Service
from findleaks.counting.scope import BASELINE, Depth, scope
from findleaks.counting.stub_removal import clean, taken_out
from findleaks.counting.table import ADDRESS, CHAIN, ENABLED, EVENTS, EXACT, FULL, SERVED, SHARED, STACK, UNSURE, Layout, Scoped, paths
from findleaks.counting.unwind_rules import named
from findleaks.errors import TargetError, UnreadableMemory, UsageError
from findleaks.runtimes import gil
from findleaks.runtimes.rules import Rule
from findleaks.runtimes.v8.isolates import KEYS, KEYS_OF_BLOCK, key_of
from findleaks.runtimes.v8.layout import Layout as V8
from findleaks.runtimes.v8.layout import Underivable, derive
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost, Outcome
from findleaks.unwind.cfi import FrameTable
from findleaks.unwind.stacks import NamedFrame, Namer

MAX_FUNCTION_BYTES = 1 << 20  # of a function searched for jumps into the patched bytes


class Injected:
    """Counts one function's calls by a stub; used as counter.Counter is."""

    def __init__(self, host: InjectionHost, wanted: Wanted) -> None:
        if wanted.when:
            raise UsageError("--when is an expression of the debugger's, which a stub in the process cannot evaluate: leave out --inject")
        self.host, self.pid, self.wanted = host, host.pid, wanted
        self.functions: list[Function] = []
        self.notes: list[str] = []
        self._memory: Optional[ProcMemory] = None
        self._rules: Optional[Rules] = None
        self._service: Optional[Service] = None
        self._guard: Optional[Guard] = None
        self._stub: Optional[Stub] = None
        self._layout: Optional[Layout] = None
        self._shared: Optional[mmap.mmap] = None
        self._v8: Optional[V8] = None
        self._plan = Plan((), ())
        self._scoped = Scoped()
        self._namer: Optional[tuple[Target, Namer]] = None
        self._names: dict[int, NamedFrame] = {}

    def prepare(self) -> None:
        """Plan what to patch; Refused, TargetError or UsageError says why not, in one line."""
        self.host.begin()
        self._memory = memory = writable_memory(self.host.pid)
        self._rules = rules = Rules(self.host.opened, self.host.pid, memory.read, self._isolate)
        target = rules.target
        if target.arch.name != "x86-64":
            raise TargetError(f"--inject knows x86-64 only, not {target.arch.name}: leave it out")
        self.functions = functions(target, self.wanted.function)
        steps: dict[int, int] = {}
        if self.wanted.rule is not None:
            steps = self._rule(self.wanted.rule, target)
        shared = [one for one in self.functions if one.address in steps]
        if shared:
            raise UsageError(f"{shared[0].name} itself opens or closes the scope: it cannot be counted by that")
        self._plan = Plan(
            [(self._patch(target, one.address, one.name), one.address | EXACT) for one in self.functions],
            [(self._patch(target, address, _name(target, address)), by) for address, by in steps.items()],
        )

    def _rule(self, rule: Rule, target: Target) -> dict[int, int]:
        """Functions to patch for the stub's test of the scope, and what each adds to the depth."""
        if rule.state == "v8":
            try:
                self._v8 = derive(target)
                key = key_of(target, self._v8)
            except (Underivable, UnreadableMemory) as error:
                raise TargetError(f"the rule v8 does not work on this process: {error}") from None
            if not self._v8.tls and key >= KEYS_OF_BLOCK:
                raise TargetError(f"the isolate is kept under the key {key}, which the stub does not look for: leave out --inject")
            self._scoped = Scoped(1, self._v8.tls or KEYS + 16 * key + 8, self._v8.level, BASELINE)
            return {}
        if rule.state == "gil":
            lock = gil.derive(target)
            if lock is not None and not lock.address and not lock.module:
                self._scoped = Scoped(3, lock.offset)
                return {}
        made = scope(rule, target)
        if not isinstance(made, Depth):
            raise TargetError(f"the rule {rule.name} is not one that a stub can test in this process: leave out --inject")
        self._scoped = Scoped(2)
        return dict(made.breakpoints)

    def _isolate(self, address: int) -> bool:
        """Whether a V8 isolate is at `address`: its implementer points back at it."""
        assert self._memory is not None and self._v8 is not None
        pointer = int.from_bytes(self._memory.read(address + self._v8.implementer, 8), "little")
        return int.from_bytes(self._memory.read(pointer, 8), "little") == address

    def _patch(self, target: Target, address: int, name: str) -> Patch:
        symbol = target.symbolize(address)
        end = symbol.address + symbol.size if symbol is not None and symbol.size else 0
        if end <= address:
            module = next((module for module in target.modules() if module.start <= address < module.end), None)
            extent = FrameTable(target, module).extent(address) if module is not None else None
            if extent is None:
                raise Refused(f"{name}: where it ends is not known")
            end = extent.end
        end = min(end, address + MAX_FUNCTION_BYTES)
        assert self._memory is not None
        made = plan(name, address, end, target.read_code(address, end - address))
        if self._memory.read(made.address, made.size) != made.code:
            raise Refused(f"{name}: a breakpoint lies where the jump is to be: delete it")
        return made

    def tables(self) -> Generator[Table, None, None]:
        """A table every `every` seconds, and a last one, each while the process is stopped."""
        outcome = Outcome("stop")
        try:
            self.prepare()
            self._start()
            began = time.monotonic()
            ticks = 0
            while True:
                elapsed = time.monotonic() - began
                ticks = max(ticks, int(elapsed / self.wanted.every)) + 1 if self.wanted.every else 0
                ends = [end for end in (self.wanted.seconds, ticks * self.wanted.every) if end]
                outcome = self._run(max(0.001, min(ends) - elapsed) if ends else None)
                elapsed = time.monotonic() - began
                finished = outcome.why != "time" or bool(self.wanted.seconds and elapsed >= self.wanted.seconds)
                if finished:
                    self._remove(outcome)
                yield self._now(elapsed, finished, outcome)
                if finished:
                    return
        finally:
            try:
                self._remove(outcome)
            finally:
                self._close()

    def _start(self) -> None:
        assert self._memory is not None and self._rules is not None

        def settings(layout: Layout) -> bytes:
            return layout.settings(self._scoped, self.wanted.events)

        self.host.hold()
        program = self._rules.target.exe_path
        self._stub, self._layout, self._shared = install(self.host, self._memory, self._plan, settings, program)
        self._seed()
        self._service = Service(self._shared, self._rules, self._layout.rules, self.wanted.events, self.host.stop, self.host.terminated)
        self._service.start()
        on, off = (1).to_bytes(8, "little"), bytes(8)
        self._guard = Guard(
            self.host.pid, self._memory.fileno(), [(self._stub.table + at, on, off) for at in (ENABLED, SERVED)], clean=True
        )
        enable(self._memory, self._stub, True)

    def _seed(self) -> None:
        """Fill in rules known already: where stacks end now, and the counted functions' callers."""
        assert self._rules is not None and self._layout is not None and self._shared is not None
        pairs = {key: self._rules.step(key).value for _, key in self._plan.patches}
        for place in self.host.places():
            region = self._rules.stack(place.sp)
            if region is not None:
                pairs[STACK | place.sp >> 12] = region.end
        for address, data in self._layout.seeds(pairs.items()).items():
            at = address - self._layout.address - SHARED
            self._shared[at : at + len(data)] = data

    def _run(self, seconds: Optional[float]) -> Outcome:
        try:
            outcome = self.host.run(seconds)
        except KeyboardInterrupt:
            return Outcome("interrupt")
        assert self._service is not None
        if self._service.error is not None:
            raise self._service.error
        if outcome.why == "time" and self.wanted.events and self._counter(EVENTS) >= self.wanted.events:
            return Outcome("asked")
        if outcome.why == "time" and self.host.terminated():
            return Outcome("stop", "the debugger is ending")
        return outcome

    def _remove(self, outcome: Outcome) -> None:
        """Remove the stub. The table stays readable."""
        if self._stub is None:
            return
        stub, self._stub = self._stub, None
        assert self._memory is not None
        try:
            if outcome.why != "ended" and self._memory.read(stub.table, 1):
                enable(self._memory, stub, False)
                runs_on = outcome.why != "stop" or not outcome.text.startswith("it received")
                self.notes += taken_out(self.host, self._memory, stub, runs_on, answered=True)
            elif self._memory.read(stub.table, 1) and not clean(self.host.pid):
                # The debugger went on with a child, and detached from the process.
                self.notes.append(f"the debugger has let {self.host.pid} go, and the stub at {stub.address:#x} stays in it, switched off")
        except BaseException:
            if self._guard is not None:
                self._guard.leave()
            raise
        finally:
            if self._service is not None:
                self._service.finish()
            if self._guard is not None:
                self._guard.dismiss()

    def _close(self) -> None:
        self._forget_names()
        for one in (self._shared, self._rules, self._memory):
            if one is not None:
                one.close()
        self.host.close()

    def _counter(self, at: int) -> int:
        assert self._shared is not None
        return int.from_bytes(self._shared[at - SHARED : at - SHARED + 8], "little")

    def _now(self, elapsed: float, finished: bool, outcome: Outcome) -> Table:
        assert self._rules is not None and self._layout is not None and self._shared is not None
        nodes = self._layout.read(self._shared[self._layout.nodes_at - SHARED :])
        rows: dict[tuple[tuple[int, ...], str], int] = {}
        lost = self._counter(FULL)
        with self._rules.lock:
            for node, keys in paths(nodes):
                if not keys:
                    lost += node.calls + node.broken
                    continue
                for count, end, code in ((node.calls, *self._end(keys[-1])), (node.broken, self._broken(keys[-1]), True)):
                    if count:
                        key = keys if code or len(keys) == 1 else keys[:-1], end
                        rows[key] = rows.get(key, 0) + count
            stacks = [Counted(count, self._named(keys), end) for (keys, end), count in rows.items()]
        unsure, events = self._counter(UNSURE), self._counter(EVENTS)
        events = min(events, self.wanted.events or events)
        matched = sum(one.count for one in stacks) + lost
        stacks.sort(key=lambda one: -one.count)
        return Table(events, matched, elapsed, stacks, finished, outcome, lost, unsure, tuple(self.notes))

    def _end(self, key: int) -> tuple[str, bool]:
        """Why a stack followed to this place is incomplete (or ""); whether the place is code."""
        assert self._rules is not None
        known = self._rules.steps.get(key)
        return (known.end, known.code) if known is not None else ("", True)

    def _broken(self, key: int) -> str:
        """Why a stack could not be followed beyond this place."""
        assert self._rules is not None
        known = self._rules.steps.get(key)
        if known is None:
            return f"the unwind rule of {key & ADDRESS:#x} did not arrive in time"
        if known.value & 0xFF == CHAIN:
            return f"nothing says who called {key & ADDRESS:#x}"
        return f"the stack cannot be followed beyond {key & ADDRESS:#x}"

    def _named(self, keys: Sequence[int]) -> tuple[NamedFrame, ...]:
        assert self._rules is not None
        if self._namer is None or self._namer[0] is not self._rules.target:
            self._namer = self._rules.target, Namer(self._rules.target, self._rules.unwinder)
        for key in keys:
            if key not in self._names:
                self._names[key] = self._namer[1].name(named(key))
        return tuple(self._names[key] for key in keys)

    def _forget_names(self) -> None:
        self._namer = None


def _name(target: Target, address: int) -> str:
    symbol = target.symbolize(address)
    return symbol.name if symbol is not None else hex(address)
