"""Architectures: the one table of what differs between them. No other file may assume x86-64.
Register positions are the kernel's in elf_gregset_t, as in an NT_PRSTATUS note (Linux
arch/x86/include/asm/user_64.h, struct user_regs_struct)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Arch:
    name: str
    machine: int  # e_machine
    word: int  # bytes of a pointer
    byteorder: Literal["little", "big"]
    red_zone: int  # bytes below the stack pointer that may be in use
    prstatus_tid: int  # offset of pr_pid in NT_PRSTATUS
    prstatus_registers: int  # offset of pr_reg
    registers: tuple[str, ...]
    sp: str
    pc: str
    thread_pointer: str  # the register that holds the thread pointer; "" where a separate note does
    extra_register_notes: tuple[int, ...]  # types; of vector registers, which may hold pointers
    dtv_offset: int  # of glibc's DTV from the thread pointer (sysdeps/ARCH/nptl/tls.h, tcbhead_t)
    page: int = 4096

    @property
    def word_format(self) -> str:
        """The struct format of one word, with its byte order."""
        return ("<" if self.byteorder == "little" else ">") + {4: "I", 8: "Q"}[self.word]

    @property
    def mask(self) -> int:
        return (1 << (8 * self.word)) - 1

    def unpack(self, data: bytes) -> tuple[int, ...]:
        """All whole words of `data`."""
        n = len(data) // self.word
        return struct.unpack(self.word_format[0] + str(n) + self.word_format[1], data[: n * self.word])


NT_PRFPREG = 2
NT_X86_XSTATE = 0x202

X86_64 = Arch(
    name="x86-64",
    machine=62,
    word=8,
    byteorder="little",
    red_zone=128,
    prstatus_tid=32,
    prstatus_registers=112,
    registers=(
        *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
        *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
    ),
    sp="rsp",
    pc="rip",
    thread_pointer="fs_base",
    extra_register_notes=(NT_PRFPREG, NT_X86_XSTATE),
    dtv_offset=8,
)

ARCHES: tuple[Arch, ...] = (X86_64,)
