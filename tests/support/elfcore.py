"""Write ELF cores as the kernel or GDB write them, and damaged cores.

Layouts: Linux include/linux/elfcore.h (elf_prstatus, elf_prpsinfo), fs/binfmt_elf.c (NT_FILE); System V gABI for the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.target.arch import X86_64, Arch

PT_LOAD, PT_NOTE = 1, 4
NT_PRSTATUS, NT_PRPSINFO, NT_AUXV, NT_FILE = 1, 3, 6, 0x46494C45


@dataclass
class Load:
    """A PT_LOAD: `data` has the dumped bytes of the `size` bytes that are mapped at `start`; `mode` is like "rw-"."""

    start: int
    size: int
    data: bytes = b""
    mode: str = "rw-"


@dataclass
class Task:
    """A thread: `registers` by name, others are 0; `extra`: further notes of the thread (owner, type, bytes)."""

    tid: int
    registers: Mapping[str, int] = field(default_factory=dict)
    extra: Sequence[tuple[bytes, int, bytes]] = ()


def note(owner: bytes, kind: int, desc: bytes, order: str = "<") -> bytes:
    """Return one Elf_Nhdr with its owner and its bytes, padded to 4."""
    owner += b"\0"
    return struct.pack(order + "III", len(owner), len(desc), kind) + owner + bytes(-len(owner) % 4) + desc + bytes(-len(desc) % 4)


def prstatus(task: Task, arch: Arch = X86_64) -> bytes:
    """Return the NT_PRSTATUS: the thread's id and its general registers."""
    words = [task.registers.get(name, 0) for name in arch.registers]
    size = arch.prstatus_registers + len(words) * arch.word + 8
    desc = bytearray(size)
    struct.pack_into("<i", desc, arch.prstatus_tid, task.tid)
    struct.pack_into(f"<{len(words)}{arch.word_format[1]}", desc, arch.prstatus_registers, *words)
    return note(b"CORE", NT_PRSTATUS, bytes(desc))


def prpsinfo(pid: int, name: str, command: str) -> bytes:
    """Return the NT_PRPSINFO of a 64-bit process."""
    desc = struct.pack("<4bxxxxQIIiiii16s80s", 0, 82, 0, 0, 0, 0, 0, pid, 1, pid, pid, name.encode(), command.encode())
    return note(b"CORE", NT_PRPSINFO, desc)


def files(rows: Sequence[tuple[int, int, int, str]], page: int = 4096) -> bytes:
    """Return the NT_FILE of (start, end, file offset in bytes, path). `page` is 4096 in the kernel's cores and 1 in GDB's."""
    desc = struct.pack("<QQ", len(rows), page)
    desc += b"".join(struct.pack("<QQQ", start, end, offset // page) for start, end, offset, _ in rows)
    return note(b"CORE", NT_FILE, desc + b"".join(path.encode() + b"\0" for *_, path in rows))


def auxv(values: Mapping[int, int]) -> bytes:
    """Return the NT_AUXV, with the end marker."""
    return note(b"CORE", NT_AUXV, b"".join(struct.pack("<QQ", k, v) for k, v in [*values.items(), (0, 0)]))


def core(
    loads: Sequence[Load],
    tasks: Sequence[Task] = (),
    *,
    pid: int = 100,
    mapped: Sequence[tuple[int, int, int, str]] = (),
    page: int = 4096,
    vector: Optional[Mapping[int, int]] = None,
    notes: Optional[bytes] = None,
    unaligned: bool = False,
    notes_last: bool = False,
    machine: int = X86_64.machine,
    kind: int = 4,
) -> bytes:
    """Return a complete 64-bit little-endian core. `unaligned` puts the segments at odd offsets, and `notes_last` the notes at the end, as
    GDB does. More than 65,534 segments are counted in section 0 (PN_XNUM). `notes` replaces all notes."""
    if notes is None:
        notes = b""
        for index, task in enumerate(tasks):
            notes += prstatus(task) + b"".join(note(*extra) for extra in task.extra)
            if index == 0:
                notes += prpsinfo(pid, "prog", "prog --flag")
                notes += auxv(vector) if vector else b""
                notes += files(mapped, page) if mapped else b""
    count = len(loads) + 1
    many = count >= 0xFFFF
    shoff = 64 + 56 * count
    at = shoff + (64 if many else 0)
    note_at = at
    if not notes_last:
        at += len(notes)
    headers, body = [], bytearray()
    base = at if unaligned else -(-at // 4096) * 4096
    for load in loads:
        flags = 4 * (load.mode[0] == "r") | 2 * (load.mode[1] == "w") | (load.mode[2] == "x")
        headers.append(
            struct.pack("<IIQQQQQQ", PT_LOAD, flags, base + len(body), load.start, 0, len(load.data), load.size, 1 if unaligned else 4096)
        )
        body += load.data
    if notes_last:
        note_at = base + len(body)
    headers.insert(0, struct.pack("<IIQQQQQQ", PT_NOTE, 0, note_at, 0, 0, len(notes), 0, 4))
    ident = b"\x7fELF\2\1\1" + bytes(9)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, shoff if many else 0, 0, 64, 56, 0xFFFF if many else count, 64 if many else 0, many, 0
    )
    section = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, count, 0, 0) if many else b""
    front = head + b"".join(headers) + section + (b"" if notes_last else notes)
    return front + bytes(base - len(front)) + bytes(body) + (notes if notes_last else b"")
