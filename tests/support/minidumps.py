"""Write minidumps in the forms of Breakpad, Crashpad and LLDB, and damaged minidumps.

Layouts: Microsoft's minidumpapiset.h; for the rest, Breakpad's src/google_breakpad/common/minidump_format.h, minidump_cpu_amd64.h and
minidump_cpu_arm64.h.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

THREADS, MODULES, MEMORY, EXCEPTION, SYSTEM, MEMORY64, MISC, MEMORY_INFO, NAMES = 3, 4, 5, 6, 7, 9, 15, 16, 24
STATUS, COMMAND_LINE, AUXV, MAPS, STAT = 0x47670004, 0x47670006, 0x47670008, 0x47670009, 0x4767000B
FULL = 0x10000F  # flags of a context: control, integer, segment and floating point registers
LLDB = 0x80100007
_GENERAL = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)), "rip")


@dataclass
class Task:
    """A thread: general registers by name, others are 0; `vectors` are the words of xmm0, xmm1, …; `bases` are LLDB's fs_base and
    gs_base."""

    tid: int
    registers: Mapping[str, int] = field(default_factory=dict)
    vectors: Sequence[int] = ()
    flags: int = FULL
    teb: int = 0
    bases: tuple[int, int] = (0, 0)

    def context(self) -> bytes:
        """Return a CONTEXT of AMD64, or LLDB's shorter form."""
        made = bytes(48) + struct.pack("<2I6HI", self.flags, 0, 0x33, 0, 0, 0, 0, 0x2B, 0x246) + bytes(48)
        made += struct.pack("<17Q", *(self.registers.get(name, 0) for name in _GENERAL))
        if self.flags == LLDB:
            return made + bytes(464) + struct.pack("<2Q", *self.bases)
        words = struct.pack(f"<{len(self.vectors)}Q", *self.vectors)
        return made + bytes(160) + words.ljust(352, b"\0") + bytes(464)


ARM64, ARM64_OLD = 0x400007, 0x80000006  # flags of both forms of a context that has all registers


@dataclass
class TaskOfArm64(Task):
    """A thread of AArch64: `registers` are x0 to x30, sp, pc and pstate; `vectors` are the words of v0, v1, …"""

    flags: int = ARM64

    def context(self) -> bytes:
        """Return an MDRawContextARM64, or an MDRawContextARM64_Old, which LLDB also writes."""
        general = struct.pack("<33Q", *(self.registers.get(name, 0) for name in (*(f"x{number}" for number in range(31)), "sp", "pc")))
        words = struct.pack(f"<{len(self.vectors)}Q", *self.vectors).ljust(512, b"\0")
        pstate = self.registers.get("pstate", 0)
        if self.flags & 0x80000000:
            return struct.pack("<Q", self.flags) + general + struct.pack("<3I", pstate, 0, 0) + words
        return struct.pack("<2I", self.flags, pstate) + general + words + struct.pack("<2I", 0, 0) + bytes(8 * 4 + 8 * 8 + 2 * 4 + 2 * 8)


class Dump:
    """A minidump under construction: a header, space for a directory, and the streams that are added."""

    ROOM = 32 + 12 * 64

    def __init__(self) -> None:
        self.data = bytearray(self.ROOM)
        self.streams: list[tuple[int, int, int]] = []

    def put(self, data: bytes) -> int:
        """Append these bytes, and return their offset."""
        at = len(self.data)
        self.data += data
        return at

    def text(self, value: str) -> int:
        """Append a MINIDUMP_STRING, and return its offset."""
        raw = value.encode("utf-16-le")
        return self.put(struct.pack("<I", len(raw)) + raw + b"\0\0")

    def stream(self, kind: int, data: bytes) -> None:
        self.streams.append((kind, len(data), self.put(data)))

    def system(self, machine: int = 9, platform: int = 0x8201) -> None:
        self.stream(SYSTEM, struct.pack("<3H2B5I", machine, 0, 0, 1, 0, 0, 0, 0, platform, 0).ljust(56, b"\0"))

    def threads(self, tasks: Sequence[Task], padded: bool = False) -> None:
        rows = b""
        for task in tasks:
            context = task.context()
            rows += struct.pack("<4I2Q4I", task.tid, 0, 0, 0, task.teb, 0, 0, 0, len(context), self.put(context))
        self.stream(THREADS, struct.pack("<I", len(tasks)) + (bytes(4) if padded else b"") + rows)

    def memory(self, parts: Sequence[tuple[int, bytes]]) -> None:
        rows = b"".join(struct.pack("<Q2I", start, len(data), self.put(data)) for start, data in parts)
        self.stream(MEMORY, struct.pack("<I", len(parts)) + rows)

    def memory64(self, parts: Sequence[tuple[int, bytes]]) -> None:
        at = self.put(b"".join(data for _, data in parts))
        rows = b"".join(struct.pack("<2Q", start, len(data)) for start, data in parts)
        self.stream(MEMORY64, struct.pack("<2Q", len(parts), at) + rows)

    def modules(self, rows: Sequence[tuple[int, int, str, bytes]]) -> None:
        """Add the list of modules. Each has start, size, path, and the CodeView record (b"LEpB" and a build-id)."""
        made = b""
        for start, size, path, record in rows:
            name, at = self.text(path), self.put(record)
            made += struct.pack("<Q4I52x2I2I16x", start, size, 0, 0, name, len(record), at, 0, 0)
        self.stream(MODULES, struct.pack("<I", len(rows)) + made)

    def exception(self, task: Task, number: int, code: int) -> None:
        context = task.context()
        at = self.put(context)
        self.stream(EXCEPTION, struct.pack("<2I2I2Q2I120x2I", task.tid, 0, number, code & 0xFFFFFFFF, 0, 0, 0, 0, len(context), at))

    def info(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Add the list of mappings. Each has start, size and PAGE_ protection."""
        made = b"".join(struct.pack("<2QI4xQ3I4x", start, start, mode, size, 0x1000, mode, 0x20000) for start, size, mode in rows)
        self.stream(MEMORY_INFO, struct.pack("<2IQ", 16, 48, len(rows)) + made)

    def bytes(self) -> bytes:
        """Return the bytes of the finished file."""
        struct.pack_into("<4s5IQ", self.data, 0, b"MDMP", 0xA793, len(self.streams), 32, 0, 1_700_000_000, 0)
        for number, row in enumerate(self.streams):
            struct.pack_into("<3I", self.data, 32 + 12 * number, *row)
        return bytes(self.data)
