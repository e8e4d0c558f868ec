"""Count calls with breakpoints, in a table of stacks."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Optional

from findleaks.counting.functions import Function, find_functions
from findleaks.counting.scope import Scope, open_scope
from findleaks.counting.walked_stacks import WalkedStacks, has_managed_calls
from findleaks.debuginfo.sources import Sources
from findleaks.errors import UsageError
from findleaks.injection.stub.guard import Guard
from findleaks.injection.stub.unwind_cache import MAX_STACKS, UnwindCache
from findleaks.runtimes.rules import Rule
from findleaks.target.base import Target
from findleaks.target.control import BreakpointHost, Outcome
from findleaks.unwind.frames import Trace, Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer

# Seconds between two readings of the mappings, which are read again while some stacks end too
# early.
REOPEN_SECONDS = 1.0


@dataclass(frozen=True)
class CountRequest:
    """A request to count calls. A table is made every `every` seconds. Counting ends after
    `seconds` or `events` (0: no limit). `lines`: whether frames have lines and inlined
    functions."""

    function: str
    rule: Optional[Rule] = None
    when: str = ""
    every: float = 0.0
    seconds: float = 0.0
    events: int = 0
    lines: bool = True

    def namer(self, target: Target, unwinder: Unwinder) -> Namer:
        """Create the object that names the frames of stacks."""
        return Namer(target, unwinder, Sources(target) if self.lines else None)


@dataclass(frozen=True)
class StackCount:
    """A stack, and the number of calls with this stack. `end`: why the stack does not reach the
    thread's first frame; "" if it does."""

    count: int
    frames: tuple[NamedFrame, ...]
    end: str


@dataclass(frozen=True)
class Table:
    """The counts at one time. `last`: whether counting has ended, with `outcome`.
    `stack_table_full`: number of matched calls that are in no stack, because the table was full.
    `undecided`: number of calls for which the scope is unknown. `notes`: changes that were left in
    the process, and data that could not be read, one line each."""

    events: int
    matched: int
    seconds: float
    stacks: Sequence[StackCount]
    last: bool
    outcome: Outcome
    stack_table_full: int = 0
    undecided: int = 0
    notes: Sequence[str] = ()


@dataclass
class _Row:
    frames: tuple[NamedFrame, ...]
    end: str
    count: int = 0


class Counter:
    """Counts the calls of one function in one process. `tables()` runs the process. When this
    generator ends or is closed, it undoes every change to the process."""

    def __init__(self, process: BreakpointHost, wanted: CountRequest) -> None:
        self.process, self.pid, self.wanted = process, process.pid, wanted
        self.functions: list[Function] = []
        self.events = self.matched = 0
        self.unwind_cache: Optional[UnwindCache] = None
        self._scope: Optional[Scope] = None
        self._watchdog: Optional[Guard] = None
        self._targets: list[Target] = []
        self._namer: Optional[Namer] = None
        self._table: dict[tuple[tuple[int, ...], str], _Row] = {}
        # The key is the id of the trace, which is therefore kept alive here
        self._rows: dict[int, tuple[Trace, _Row]] = {}
        self._walked: Optional[WalkedStacks] = None
        self._error: Optional[BaseException] = None
        self._interrupted = False
        self._reopened_at = 0.0
        self._stack = self._frame = self._link = self._thread_pointer = ""

    def prepare(self) -> None:
        """Find the functions to count, and what the rule needs to test scopes. Raises TargetError
        or UsageError."""
        target = self.process.open_target()
        self._targets.append(target)
        self.functions = find_functions(target, self.wanted.function)
        if self.wanted.rule is not None:
            self._scope = open_scope(self.wanted.rule, target)
            shared = [one for one in self.functions if one.address in self._scope.breakpoints]
            if shared:
                raise UsageError(f"{shared[0].name} itself opens or closes the scope, so this rule cannot count its calls")
        arch = target.arch
        self._stack, self._frame, self._link = (arch.debugger_name(one) for one in (arch.sp, arch.frame_pointer, arch.link_register))
        if has_managed_calls(target):
            self._walked = WalkedStacks(self.process, self.wanted.namer)
            if self._walked.needs_thread_pointer:
                self._thread_pointer = arch.debugger_name(arch.thread_pointer)
        self.unwind_cache = UnwindCache(target, self.process.read)
        self._namer = self.wanted.namer(target, self.unwind_cache.unwinder)

    def tables(self) -> Generator[Table, None, None]:
        """Yield a table every `every` seconds, and a last one. The process is stopped while a table
        is used."""
        began = time.monotonic()
        try:
            self.prepare()
            addresses = {one.address for one in self.functions} | set(self._scope.breakpoints if self._scope is not None else ())
            self._guard(sorted(addresses))
            self.process.arm(sorted(addresses), self._hit)
            began = time.monotonic()
            ticks = 0
            while True:
                elapsed = time.monotonic() - began
                # On a busy machine, the process would hardly run between two tables. Therefore
                # tables that are overdue are skipped.
                ticks = max(ticks, int(elapsed / self.wanted.every + 0.5)) + 1 if self.wanted.every else 0
                ends = [end for end in (self.wanted.seconds, ticks * self.wanted.every) if end]
                outcome = self._run(max(0.001, min(ends) - elapsed) if ends else None)
                if self._error is not None:
                    raise self._error
                elapsed = time.monotonic() - began
                finished = outcome.why != "time" or bool(self.wanted.seconds and elapsed >= self.wanted.seconds)
                if finished:
                    self.process.disarm()
                yield self._now(elapsed, finished, outcome)
                if finished:
                    return
        finally:
            try:
                self.process.disarm()
                self.process.close()
                if self._watchdog is not None:
                    self._watchdog.dismiss()
            finally:
                for one in (*self._targets, self._walked):
                    if one is not None:
                        one.close()

    def _guard(self, addresses: Sequence[int]) -> None:
        """Start a watchdog, if possible, which restores the code if the debugger is killed."""
        target = self._targets[0]
        # Each breakpoint is one byte, or one aligned word. A single store restores it, so no thread
        # sees part of it.
        trap = target.arch.breakpoint
        pokes = [(address, trap, target.read(address, len(trap))) for address in addresses]
        try:
            memory = os.open(f"/proc/{self.process.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._watchdog = Guard(self.process.pid, memory, [poke for poke in pokes if poke[2] != trap])
        finally:
            os.close(memory)

    def _run(self, seconds: Optional[float]) -> Outcome:
        """Run the process. Ctrl-C ends counting with a table, even if it arrives while findleaks'
        own code runs."""
        try:
            outcome = self.process.run(seconds)
        except KeyboardInterrupt:
            return Outcome("interrupt")
        return Outcome("interrupt") if self._interrupted and outcome.why != "ended" else outcome

    def _now(self, elapsed: float, finished: bool, outcome: Outcome) -> Table:
        stacks = [StackCount(row.count, row.frames, row.end) for row in self._table.values()]
        if self._walked is not None:
            stacks += [StackCount(one.calls, self._with_own_name(one.address, one.frames), one.end) for one in self._walked.stacks()]
        stacks.sort(key=lambda one: -one.count)
        names = self._walked or self._namer
        notes = tuple(names.warnings) if names is not None else ()
        return Table(self.events, self.matched, elapsed, stacks, finished, outcome, notes=notes)

    def _hit(self, address: int) -> bool:
        """Handle a thread at `address`. Errors are raised later, when the process stops, because
        debuggers would only print them."""
        try:
            return self._event(address)
        except KeyboardInterrupt:
            self._interrupted = True
            return True
        except BaseException as error:
            self._error = error
            return True

    def _event(self, address: int) -> bool:
        process = self.process
        if self._scope is not None:
            by = self._scope.breakpoints.get(address)
            if by is not None:
                self._scope.step(process.thread(), by)
                return False
        self.events += 1
        if (self._scope is None or self._scope.outside(process)) and (not self.wanted.when or process.holds(self.wanted.when)):
            self.matched += 1
            self._count(address)
        return self.events == self.wanted.events

    def _count(self, address: int) -> None:
        assert self.unwind_cache is not None and self._namer is not None
        sp, fp = self.process.register(self._stack), self.process.register(self._frame)
        if self._walked is not None:
            self._walked.count(address, sp, fp, self.process.register(self._thread_pointer) if self._thread_pointer else 0)
            return
        link = self.process.register(self._link) if self._link else 0
        trace = self.unwind_cache.lookup_or_unwind(address, sp, fp, link)
        if trace.end and time.monotonic() > self._reopened_at + REOPEN_SECONDS:
            self._reopen()  # code may have been mapped in the meantime
            trace = self.unwind_cache.lookup_or_unwind(address, sp, fp, link)
            self._reopened_at = time.monotonic()
        # The cache returns the same object for each stack, and a lookup by id is much faster than
        # by trace.
        known = self._rows.get(id(trace))
        if known is None:
            key = tuple(frame.pc for frame in trace.frames), trace.end
            row = self._table.get(key)
            if row is None:
                row = self._table[key] = _Row(self._name_stack(address, trace), trace.end)
            if len(self._rows) > MAX_STACKS:
                self._rows.clear()
            known = self._rows[id(trace)] = trace, row
        known[1].count += 1

    def _name_stack(self, address: int, trace: Trace) -> tuple[NamedFrame, ...]:
        assert self._namer is not None
        return self._with_own_name(address, tuple(chain.from_iterable(map(self._namer.names, trace.frames))))

    def _with_own_name(self, address: int, frames: tuple[NamedFrame, ...]) -> tuple[NamedFrame, ...]:
        """Return the frames. If the counted function has no symbol, it gets the name that the user
        gave."""
        own = frames[0]
        if not own.function:
            own = next((own._replace(function=one.name, offset=0) for one in self.functions if one.address == address), own)
        return (own, *frames[1:])

    def _reopen(self) -> None:
        assert self.unwind_cache is not None
        target = self.process.open_target()
        self._targets.append(target)
        self.unwind_cache.reload(target)
        self._namer = self.wanted.namer(target, self.unwind_cache.unwinder)
        if len(self._targets) > 2:
            self._targets.pop(1).close()
