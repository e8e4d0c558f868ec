"""Record the blocks that a process allocates, with stubs in front of its allocators' functions."""

from __future__ import annotations

import struct
import time
from typing import NamedTuple, Optional

from findleaks.debuginfo.sources import Sources
from findleaks.errors import TargetError
from findleaks.injection.own_memory import PAGE
from findleaks.injection.stub.patcher import Stub
from findleaks.injection.stub.relocate import Patch
from findleaks.injection.stub.running_stub import RunningStub
from findleaks.injection.stub.stack_names import StackNames
from findleaks.injection.stub.table import EXACT
from findleaks.injection.stub.unwind_rules import Step
from findleaks.runtimes.directory import describe_code
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost, Outcome
from findleaks.target.ptrace import state
from findleaks.tracking.hooks import BLOCKS, Hook, HookSet, TrackingCode, find_hooks
from findleaks.tracking.probe import Probe
from findleaks.tracking.record_table import LEAST, MEAN, MOST_BYTES, TAKEN, RecordTable, Sampling, build_draws
from findleaks.tracking.thinning import Thinning
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import Namer


class Recording(NamedTuple):
    """The duration of the recording, and why it ended."""

    seconds: float
    outcome: Outcome


class Tracker:
    """Tracks one process. Call `start` and `wait`, read the process, then call `remove`. `close`
    must be called; it removes the stubs if `remove` was not called. `lines`: whether source lines
    of frames are read. `wanted`: the functions to hook."""

    def __init__(self, host: InjectionHost, sampling: Sampling, lines: bool = False, wanted: HookSet = BLOCKS) -> None:
        self.host, self.sampling, self._lines, self._wanted = host, sampling, lines, wanted
        self.hooks: list[Hook] = []
        self.notes: list[str] = []
        self.names: Optional[StackNames] = None
        self.probe: Optional[Probe] = None
        self._running: Optional[RunningStub[RecordTable]] = None
        self.taken = 0  # records that were made before the recording ended
        self._began = 0.0
        self._outcome = Outcome("stop")

    @property
    def running(self) -> RunningStub[RecordTable]:
        assert self._running is not None
        return self._running

    def _namer(self, target: Target, unwinder: Unwinder) -> Namer:
        return Namer(target, unwinder, Sources(target) if self._lines else None)

    def start(self, until_full: bool, seconds: float = 0.0) -> None:
        """Install the stubs. Raises TargetError with the reason if that is impossible.
        Unless the table is to be filled (`until_full`), recording is thinned so that the table
        lasts for `seconds` (0: unknown)."""
        self.host.begin()
        running: RunningStub[RecordTable] = RunningStub(self.host, describe=describe_code)
        self._running, self.names = running, StackNames(running.rules, self._namer)
        target = running.target
        if target.arch.name != X86_64.name:
            raise TargetError(f"track supports x86-64 only, not {target.arch.name}")
        found, notes = find_hooks(target, self._patch, self._wanted)
        self.notes += notes
        self.hooks = [hook for hook, _ in found]
        code = TrackingCode(found)

        def settings(layout: RecordTable) -> bytes:
            # Blocks of all sizes are recorded at first, until the probe restricts recording to the
            # wanted sizes.
            every_size = self.sampling._replace(least=0, most=MOST_BYTES)
            return layout.recording(every_size, layout.address - (code.size + PAGE - 1 & -PAGE), running.rules.chain)

        def seeds(stub: Stub) -> dict[int, int]:
            running.write(running.layout.draws_at, build_draws())
            own = code.rules(stub.address + PAGE)
            running.rules.steps.update({key: Step(value) for key, value in own.items()})
            return {**own, **{key: running.rules.step(key).value for key in (hook.address | EXACT for hook in self.hooks)}}

        def thin(mean: int) -> None:
            running.memory.write(running.layout.address + MEAN, mean.to_bytes(8, "little"))

        layout = RecordTable(0)
        thinning = Thinning(lambda: running.counter(TAKEN), layout.records, thin, seconds)
        exact = until_full or bool(self.sampling.mean)
        self.probe = self._probe(running)
        watched = (self.probe,) if exact else (self.probe, thinning)

        def watch() -> None:
            for one in watched:
                one()

        running.start(code, layout, settings, seeds, layout.records if until_full else 0, watch)
        self._began = time.monotonic()

    def _probe(self, running: RunningStub[RecordTable]) -> Probe:
        def close() -> None:
            wanted = struct.pack("<2Q", self.sampling.least, self.sampling.most - self.sampling.least)
            running.memory.write(running.layout.address + LEAST, wanted)

        pid = self.host.pid
        return Probe(lambda: running.counter(TAKEN), close if self.sampling.selects else None, lambda: state(pid, pid))

    def _patch(self, address: int, name: str) -> Patch:
        return self.running.patch(address, name)

    def wait(self, seconds: float) -> Recording:
        """Let the process run for `seconds` (0: no limit), until the table is full, or until
        Ctrl-C."""
        self._outcome = self.running.run(seconds or None)
        self.taken = self.running.counter(TAKEN)
        if self.probe is not None:
            self.probe.end()
        return Recording(time.monotonic() - self._began, self._outcome)

    def remove(self) -> None:
        """Remove the stubs. The table can be read until `close`."""
        running = self.running
        if running.stub is not None:
            if self._outcome.why != "ended":
                self.host.hold()
            running.remove(self._outcome)
            self.notes += running.notes

    def close(self) -> None:
        if self._running is None:
            self.host.close()
            return
        try:
            self.remove()
        finally:
            self._running.close()
