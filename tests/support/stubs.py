"""Run the stub inside the test process, on synthetic stacks."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Optional

import truth

from findleaks.counting.generated import stub as stubcode
from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.rule_service import Service
from findleaks.injection.stub.table import ENABLED, EVENTS, EXACT, FULL, ORPHANED, SHARED, STACK, UNSURE, CountTable, Scoped, paths

WORDS = 4096
ROOM = 1024
"""Words below the stack pointer."""
ALL = Scoped()
_BACK = b"\xff\x24\x24"  # jmp *(%rsp)


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def map_together(*sizes: int) -> list[memoryview]:
    """Return neighbouring pieces of one executable mapping, each at the beginning of a page. Code refers to other code, and to its table,
    with distances of 32 bits, and the kernel may place separate mappings too far apart."""
    sizes = tuple(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes)
    area = memoryview(mmap.mmap(-1, sum(sizes), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
    ends = list(accumulate(sizes))
    return [area[end - size : end] for size, end in zip(sizes, ends)]


def harness(folder: Path) -> ctypes.CDLL:
    made = folder / "harness.so"
    source = truth.PROGRAMS / "stub_harness.c"
    subprocess.run(["gcc", "-O1", "-mno-red-zone", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", made, source], check=True)
    library = ctypes.CDLL(str(made))
    library.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong]
    library.run.restype = ctypes.c_ulong
    library.preserved.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p]
    return library


class Machine:
    """A table with the stub, which jumps to no function. `key` is the function's key."""

    key = 0x400000 | EXACT

    def __init__(self, library: ctypes.CDLL, scoped: Scoped = ALL, limit: int = 0, patience: int = 10**7, **sizes: int) -> None:
        self.library = library
        self.code, self.memory = map_together(16384, CountTable(0, **sizes).size)
        self.layout = CountTable(address(self.memory), **sizes)
        settings = self.layout.settings(scoped, limit, patience)
        self.memory[: len(settings)] = settings
        self.memory[ENABLED] = 1
        self.count = self._put(0, stubcode.COUNT, self.key)
        self.opens = self._put(8192, stubcode.STEP, 1)
        self.closes = self._put(10240, stubcode.STEP, -1)
        self.stack = (ctypes.c_uint64 * WORDS)()
        self.sp = ctypes.addressof(self.stack) + 8 * ROOM
        self.end = ctypes.addressof(self.stack) + 8 * WORDS
        self.back = int(library.run(self._put(12288, b"", 0), self.sp, 0))

    def _put(self, at: int, blob: bytes, operand: int) -> int:
        made = bytearray(blob)
        where = address(self.code) + at
        if blob:
            distance = self.layout.address - where - stubcode.TABLE - 4
            made[stubcode.TABLE : stubcode.TABLE + 4] = distance.to_bytes(4, "little", signed=True)
            made[stubcode.OPERAND : stubcode.OPERAND + 8] = (operand & (1 << 64) - 1).to_bytes(8, "little")
        self.code[at : at + len(made) + 3] = bytes(made) + _BACK
        return where

    def seed(self, rules: dict[int, int], bounded: bool = True) -> None:
        """Add rules before the first call, and the address at which the stack ends."""
        pages = {STACK | page: self.end for page in range(self.sp >> 12, (self.end >> 12) + 1)} if bounded else {}
        for where, data in self.layout.seeds({**pages, **rules}.items()).items():
            at = where - self.layout.address
            self.memory[at : at + 16] = data

    def call(self, words: Sequence[int], fp: int = 0, stub: Optional[int] = None) -> None:
        """Call the stub with a stack that has `words` after the return address. `fp`: the frame pointer."""
        for number, word in enumerate(words):
            self.stack[ROOM + 1 + number] = word
        self.library.run(stub or self.count, self.sp, fp)

    def counter(self, at: int) -> int:
        return int.from_bytes(self.memory[at : at + 8], "little")

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Return the counters events, full, unsure, orphaned."""
        return self.counter(EVENTS), self.counter(FULL), self.counter(UNSURE), self.counter(ORPHANED)

    def counted(self) -> dict[tuple[int, ...], tuple[int, int]]:
        """Return the number of calls and of broken calls, by the keys of the frames."""
        nodes = self.layout.read(self.memory[self.layout.nodes_at :])
        return {keys: (node.calls, node.broken) for node, keys in paths(nodes)}

    def shared(self) -> memoryview:
        return self.memory[SHARED:]

    def service(self, rules: Rules) -> Service:
        return Service(self.shared(), rules, self.layout.rules, 0, lambda: None, lambda: False)  # type: ignore[arg-type]
