"""A stub in a process: install it, serve it while the process runs, and remove it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import Generic, Optional, TypeVar

from findleaks.injection.stub.guard import Guard
from findleaks.injection.stub.patcher import Stub, StubCode, enable, install
from findleaks.injection.stub.proc_memory import ProcMemory, writable_memory
from findleaks.injection.stub.relocate import Patch, Refused, plan
from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.rule_service import Service
from findleaks.injection.stub.stub_removal import clean, remove_stub
from findleaks.injection.stub.table import ENABLED, EVENTS, SERVED, SHARED, STACK, CountTable
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost, Outcome
from findleaks.unwind.cfi import FrameTable
from findleaks.unwind.managed_frames import CodeDescriptions

# Maximum number of bytes of a function that are searched for jumps into the patched bytes
MAX_FUNCTION_BYTES = 1 << 20
_PART_OF_PAGES = 8  # initially, at most 1 / this of the rules are bitmaps of readable pages
L = TypeVar("L", bound=CountTable)


class RunningStub(Generic[L]):
    """The stub of one process. Call `start`, `run`, `remove` and `close`, in this order. `notes`:
    one line for each change that could not be undone."""

    def __init__(
        self,
        host: InjectionHost,
        isolate: Callable[[int], bool] = lambda address: False,
        describe: Callable[[Target], CodeDescriptions] = lambda target: CodeDescriptions(),
    ) -> None:
        """`isolate`: a function that returns whether a V8 isolate is at an address. It is called if
        the stub asks for this. `describe`: see Rules."""
        self.host = host
        self.notes: list[str] = []
        self.stub: Optional[Stub] = None
        self.memory: ProcMemory = writable_memory(host.pid)
        try:
            self.rules = Rules(host.open_target, host.pid, self.memory.read, isolate, describe)
        except BaseException:
            self.memory.close()
            raise
        self._limit = 0
        self._service: Optional[Service] = None
        self._guard: Optional[Guard] = None
        self._shared: Optional[mmap.mmap] = None
        self._layout: Optional[L] = None

    @property
    def target(self) -> Target:
        return self.rules.target

    @property
    def layout(self) -> L:
        assert self._layout is not None
        return self._layout

    def patch(self, address: int, name: str) -> Patch:
        """Plan the jump at a function. Raises Refused with the reason if it cannot be patched."""
        target = self.target
        symbol = target.symbolize(address)
        end = symbol.address + symbol.size if symbol is not None and symbol.size else 0
        if end <= address:
            module = next((module for module in target.modules() if module.start <= address < module.end), None)
            extent = FrameTable(target, module).extent(address) if module is not None else None
            if extent is None:
                raise Refused(f"{name}: its end is unknown")
            end = extent.end
        end = min(end, address + MAX_FUNCTION_BYTES)
        made = plan(name, address, end, target.read_code(address, end - address))
        if self.memory.read(made.address, made.size) != made.code:
            raise Refused(f"{name}: a breakpoint is in the way of the jump; delete it")
        return made

    def start(
        self,
        code: StubCode,
        layout: L,
        settings: Callable[[L], bytes],
        seeds: Callable[[Stub], Mapping[int, int]],
        limit: int,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Install the stub, and enable it. `seeds`: returns initial rules.
        The process is stopped when the table counts `limit` events (0: never). Another thread calls
        `watch` regularly while the process runs."""

        def has_ended() -> bool:
            watch()
            return self.host.is_terminating()

        self.host.hold()
        self.rules.see_threads([place.thread_pointer for place in self.host.places()])
        self.stub, self._layout, self._shared = install(self.host, self.memory, code, layout, settings, self.target.exe_path)
        self._seed(seeds(self.stub))
        self._limit = limit
        self._service = Service(self._shared, self.rules, self.layout.rules, limit, self.host.stop, has_ended)
        self._service.start()
        on, off = (1).to_bytes(8, "little"), bytes(8)
        pokes = [(self.stub.table + at, on, off) for at in (ENABLED, SERVED)]
        self._guard = Guard(self.host.pid, self.memory.fileno(), pokes, clean=True)
        enable(self.memory, self.stub, True)

    def _seed(self, rules: Mapping[int, int]) -> None:
        """Store these rules, and the present ends of stacks, in the table."""
        pairs = dict(rules)
        for place in self.host.places():
            region = self.rules.stack(place.sp)
            if region is not None:
                pairs[STACK | place.sp >> 12] = region.end
        if self.rules.chain:
            pairs.update(self.rules.pages.seed(self.layout.rules // _PART_OF_PAGES))
        for address, data in self.layout.seeds(pairs.items()).items():
            self.write(address - self.layout.address, data)

    def run(self, seconds: Optional[float]) -> Outcome:
        """Let the process run for at most `seconds`."""
        try:
            outcome = self.host.run(seconds)
        except KeyboardInterrupt:
            self._check_code()
            return Outcome("interrupt")
        assert self._service is not None
        if self._service.error is not None:
            raise self._service.error
        if outcome.why != "ended":
            self._check_code()
        if outcome.why == "time" and self._limit and self.counter(EVENTS) >= self._limit:
            return Outcome("asked")
        if outcome.why == "time" and self.host.is_terminating():
            return Outcome("stop", "the debugger is ending")
        return outcome

    def _check_code(self) -> None:
        with self.rules.lock:
            self.rules.check()

    def remove(self, outcome: Outcome) -> None:
        """Remove the stub, after the process stopped with this outcome. The table is not
        removed."""
        if self.stub is None:
            return
        stub, self.stub = self.stub, None
        try:
            if outcome.why != "ended" and self.memory.read(stub.table, 1):
                enable(self.memory, stub, False)
                runs_on = outcome.why != "stop" or not outcome.text.startswith("it received")
                self.notes += remove_stub(self.host, self.memory, stub, runs_on, answered=True)
            elif self.memory.read(stub.table, 1) and not clean(self.host.pid):
                # The debugger followed a child, and detached from this process.
                self.notes.append(f"the debugger has detached from {self.host.pid}; the stub at {stub.address:#x} stays in it, disabled")
        except BaseException:
            if self._guard is not None:
                self._guard.leave()
            raise
        finally:
            if self._service is not None:
                self._service.finish()
            if self._guard is not None:
                self._guard.dismiss()

    def close(self) -> None:
        if self._service is not None:
            self._service.finish()  # must end before the table is unmapped, even if `remove` failed
        for one in (self._shared, self.rules, self.memory):
            if one is not None:
                one.close()
        self.host.close()

    # -- the shared table; positions are offsets in the table

    def read(self, at: int, size: int) -> bytes:
        assert self._shared is not None
        return self._shared[at - SHARED : at - SHARED + size]

    def write(self, at: int, data: bytes) -> None:
        assert self._shared is not None
        self._shared[at - SHARED : at - SHARED + len(data)] = data

    def counter(self, at: int) -> int:
        return int.from_bytes(self.read(at, 8), "little")
