"""Decode threads of an x86-64 minidump: registers and their words.

Layout: Microsoft's winnt.h, CONTEXT (AMD64); Breakpad src/google_breakpad/common/
minidump_cpu_amd64.h, MDRawContextAMD64. The floating point part is an FXSAVE image, with the low
128 bits of each vector register. LLDB's structure lacks this part, so the offsets of the fields
after it are lower by 512 bytes. Since LLDB 20, its structure ends with the bases of FS and GS,
under a flag that only LLDB uses
(lldb/source/Plugins/Process/minidump/RegisterContextMinidump_x86_64.h)."""

from __future__ import annotations

import struct

from findleaks.target.arch import X86_64
from findleaks.target.base import Thread
from findleaks.target.register_words import LEGACY, xsave_words

_SIZE = 1232  # bytes of a context with the floating point part
MOST = 1 << 14  # most bytes read of a context; extended contexts end with XSAVE images
_FLAGS_AT, _SEGMENTS_AT, _GENERAL_AT, _FLOATS_AT, _BASES_AT = 48, 56, 120, 256, 720
_AMD64, _CONTROL, _INTEGER, _SEGMENTS, _FLOATS, _LLDB = 0x100000, 1, 2, 4, 8, 0x80000000
_SEGMENT_FORM = struct.Struct("<6HI")
_GENERAL_FORM = struct.Struct("<17Q")
_SEGMENT_NAMES = ("cs", "ds", "es", "fs", "gs", "ss", "eflags")
_GENERAL = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)), "rip")
_IN_CONTROL = ("cs", "ss", "eflags", "rsp", "rip")


def thread(tid: int, context: memoryview, pointer: int) -> tuple[Thread, bool]:
    """Decode a thread. Return the thread, and whether its vector registers are known.
    `pointer` is its thread pointer if the dump has it outside the context, otherwise 0. Registers
    whose flag is not set, or that are cut off, are omitted."""
    registers: dict[str, int] = {}
    flags = int.from_bytes(context[_FLAGS_AT : _FLAGS_AT + 4], "little")
    known = bool(flags & _AMD64) and len(context) >= _FLOATS_AT
    if known:
        found = dict(zip(_SEGMENT_NAMES, _SEGMENT_FORM.unpack_from(context, _SEGMENTS_AT)))
        found.update(zip(_GENERAL, _GENERAL_FORM.unpack_from(context, _GENERAL_AT)))
        registers = {name: value for name, value in found.items() if flags & _flag(name)}
        if flags & _LLDB and len(context) >= _BASES_AT + 16:
            registers.update(zip(("fs_base", "gs_base"), X86_64.unpack(bytes(context[_BASES_AT : _BASES_AT + 16]))))
    if pointer:
        registers[X86_64.thread_pointer] = pointer
    words, names = list(registers.values()), list(registers)
    vectors = known and bool(flags & _FLOATS) and len(context) >= _SIZE
    if vectors:
        words += X86_64.unpack(bytes(context[_FLOATS_AT : _FLOATS_AT + LEGACY]))
        names += xsave_words(0, LEGACY)
    own = registers.get(X86_64.thread_pointer, 0)
    return Thread(tid, registers, registers.get("rsp", 0), registers.get("rip", 0), own, tuple(words), tuple(names)), vectors


def _flag(name: str) -> int:
    return _CONTROL if name in _IN_CONTROL else _SEGMENTS if name in _SEGMENT_NAMES else _INTEGER
