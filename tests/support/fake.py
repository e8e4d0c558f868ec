"""A target for tests, with memory given as {address: bytes}."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Optional

from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Module, Range, Region, Symbol, Target, Thread
from findleaks.target.reader import Extent, ExtentReader, Source, disjoint
from findleaks.target.residency.presence import Presence


def thread(
    tid: int = 1, sp: int = 0, registers: Optional[Mapping[str, int]] = None, thread_pointer: int = 0, arch: Arch = X86_64
) -> Thread:
    """Return a thread with these registers, the others 0."""
    values = dict.fromkeys(arch.registers, 0)
    values.update(registers or {})
    values[arch.sp] = sp
    if arch.thread_pointer:
        values[arch.thread_pointer] = thread_pointer
    return Thread(tid, values, sp, values[arch.pc], thread_pointer, tuple(values.values()))


class FakeTarget(ExtentReader, Target):
    """A complete Target over bytes in memory.

    `names` and `permissions` ("rw-", "r-x", "---" …) are by start address; without them regions are "rw-" and anonymous. `absent` are
    ranges that are mapped but cannot be read. `stop_after`: from this number of polls on, `interrupted()` returns True.
    """

    auxv: Mapping[int, int] = {}  # tests replace this

    def __init__(
        self,
        memory: Mapping[int, bytes],
        *,
        names: Optional[Mapping[int, str]] = None,
        permissions: Optional[Mapping[int, str]] = None,
        threads: Sequence[Thread] = (),
        modules: Sequence[Module] = (),
        symbols: Iterable[Symbol] = (),
        absent: Sequence[Range] = (),
        arch: Arch = X86_64,
        pid: Optional[int] = None,
        live: bool = False,
        stop_after: Optional[int] = None,
    ) -> None:
        names, permissions = names or {}, permissions or {}
        self._memory = {start: bytearray(data) for start, data in memory.items() if data}
        extents = [Extent(start, start + len(data), 0, Source(memoryview(data))) for start, data in self._memory.items()]
        super().__init__(arch, disjoint(extents))
        self.description, self.path, self.pid, self.live = "a fake", "", pid, live
        self.warnings: list[str] = []
        self.unread, self.truncated = list(absent), False
        spans = [*((e.start, e.end) for e in self._extents), *absent]
        self._regions = []
        for start, end in sorted(spans):
            mode = permissions.get(start, "rw-")
            self._regions.append(Region(start, end, "r" in mode, "w" in mode, "x" in mode, names.get(start, "")))
        self._threads, self._modules = list(threads), sorted(modules, key=lambda m: m.start)
        self._symbols = sorted(symbols, key=lambda s: s.address)
        self._left = stop_after
        self.pages: Optional[Presence] = None

    def stop_after(self, polls: int) -> None:
        """Make `interrupted()` return True from this number of polls on."""
        self._left = polls

    def write(self, address: int, data: bytes) -> None:
        """Change the fake's memory; the range must be in one region."""
        for start, memory in self._memory.items():
            if start <= address and address + len(data) <= start + len(memory):
                memory[address - start : address - start + len(data)] = data
                return
        raise ValueError(f"{address:#x} is not in one region of the fake")

    def write_word(self, address: int, value: int) -> None:
        self.write(address, value.to_bytes(self.arch.word, self.arch.byteorder))  # type: ignore[arg-type]

    def regions(self) -> Sequence[Region]:
        return self._regions

    def resident(self, start: int, end: int) -> Optional[int]:
        return None

    def presence(self, tell: Callable[[float], None]) -> Optional[Presence]:
        """Return what a test stored in `pages`."""
        return self.pages

    def modules(self) -> Sequence[Module]:
        return self._modules

    def symbol(self, name: str, module: str = "") -> Optional[Symbol]:
        for symbol in self._symbols:
            if symbol.name == name and symbol.module.startswith(module):
                return symbol
        return None

    def symbols_starting(self, prefix: str) -> Sequence[Symbol]:
        return [symbol for symbol in self._symbols if symbol.name.startswith(prefix)]

    def symbolize(self, address: int) -> Optional[Symbol]:
        for symbol in self._symbols:
            if symbol.address <= address < symbol.address + max(symbol.size, 1):
                return symbol
        return None

    def thread_locals(self, module: Module) -> Sequence[Symbol]:
        return []

    def debug_data(self, module: Module) -> Sequence[bytes]:
        return []

    def threads(self) -> Sequence[Thread]:
        return self._threads

    def is_interrupted(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0

    def close(self) -> None:
        self._extents = []
