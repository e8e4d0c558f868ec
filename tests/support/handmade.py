"""Synthetic cores with a known heap, stack and library, and helpers that check how findleaks opens or rejects them."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task

from findleaks.errors import FindleaksError, TargetError, UnreadableMemory
from findleaks.target import elf
from findleaks.target.core import CoreTarget, open_core

HEAP, STACK, LIBRARY = 0x5555_0000_0000, 0x7FFC_0000_0000, 0x7F00_0000_0000
NT_PRFPREG, NT_X86_XSTATE = 2, 0x202


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def page(byte: bytes) -> bytes:
    return byte * 4096


def usual(**options: object) -> bytes:
    """Return a core with a heap, a stack, reserved memory without access, and two threads."""
    loads = [
        Load(HEAP, 0x2000, page(b"h") + page(b"H")),
        Load(HEAP + 0x2000, 0x10_0000, b"", "---"),
        Load(STACK, 0x1000, page(b"s")),
    ]
    tasks = [
        Task(101, {"rsp": STACK + 0x100, "rip": 0x1234, "fs_base": HEAP + 8, "rbx": 0xB0B}, [(b"CORE", NT_PRFPREG, words(0xF1, 0xF2))]),
        Task(100, {"rsp": STACK + 0x800, "rax": 0xA0A}, [(b"LINUX", NT_X86_XSTATE, words(0xF3) + b"\1\2\3")]),
    ]
    return elfcore.core(loads, tasks, **options)  # type: ignore[arg-type]


def open_bytes(path: Path, data: bytes, **options: str) -> CoreTarget:
    path.write_bytes(data)
    return open_core(str(path), **options)


def check_line(error: FindleaksError) -> None:
    assert "\n" not in str(error)


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(TargetError) as caught:
        open_core(str(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def built_library(folder: Path) -> Path:
    """Build libx.so in the folder, with a build-id, a constant and a function."""
    (folder / "l.c").write_text('const char text[] = "constant in the file"; int shared_function(void) { return 1; }')
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", folder / "libx.so", folder / "l.c"], check=True)
    return folder / "libx.so"


def image_of(library: Path, only_first_page: bool = False) -> list[Load]:
    """Return the PT_LOADs of a library that is loaded at LIBRARY."""
    data = library.read_bytes()
    loads = []
    for s in elf.segments(data, elf.header(data)):
        if s.type != elf.PT_LOAD:
            continue
        low, high = s.vaddr // 4096 * 4096, -(-(s.vaddr + s.memsz) // 4096) * 4096
        offset = s.offset - (s.vaddr - low)
        dumped = data[offset : s.offset + s.filesz].ljust(high - low, b"\0")
        if only_first_page and not s.flags & elf.PF_W:
            dumped = dumped[:4096] if offset == 0 else b""
        mode = "r" + ("w" if s.flags & elf.PF_W else "-") + ("x" if s.flags & elf.PF_X else "-")
        loads.append(Load(LIBRARY + low, high - low, dumped, mode))
    return loads


def mapped_as(library: Path, path: str) -> list[tuple[int, int, int, str]]:
    data = library.read_bytes()
    rows = []
    for s in elf.segments(data, elf.header(data)):
        if s.type == elf.PT_LOAD:
            low, end = s.vaddr // 4096 * 4096, -(-(s.vaddr + s.filesz) // 4096) * 4096
            rows.append((LIBRARY + low, LIBRARY + end, s.offset - (s.vaddr - low), path))
    return rows


def core_with(library: Path, path: str, only_first_page: bool = True) -> bytes:
    loads = [Load(HEAP, 0x1000, page(b"h")), *image_of(library, only_first_page)]
    return elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped_as(library, path))


def constant_of(core: CoreTarget) -> bool:
    """Return whether the constant, which is only in the file, can be read. (The symbol itself may come from the first page.)"""
    text = core.symbol("text", "lib")
    assert text is not None
    try:
        return core.read(text.address, 20) == b"constant in the file"
    except UnreadableMemory:
        return False
