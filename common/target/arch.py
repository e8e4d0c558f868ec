"""Architectures: the one table of what differs between them. No other file may assume x86-64.
Register positions are the kernel's in elf_gregset_t, as in an NT_PRSTATUS note (Linux
arch/x86/include/asm/user_64.h, struct user_regs_struct; arch/arm64/include/uapi/asm/ptrace.h,
struct user_pt_regs)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Arch:
    name: str
    machine: int  # e_machine
    word: int  # bytes of a pointer
    byteorder: Literal["little", "big"]
    address_bits: int  # of addresses that the kernel gives without being asked for higher ones
    red_zone: int  # bytes below the stack pointer that may be in use
    prstatus_tid: int  # offset of pr_pid in NT_PRSTATUS
    prstatus_registers: int  # offset of pr_reg
    registers: tuple[str, ...]
    sp: str
    pc: str
    frame_pointer: str
    link_register: str  # that a call puts the return address into; "": calls put it on the stack
    # By DWARF number; the last one is the program counter, whose value in a caller is that of the
    # rule for the return address.
    dwarf_registers: tuple[str, ...]
    thread_pointer: str  # the register that holds it, a name of findleaks' own where a note does
    thread_pointer_note: int  # type of the note that begins with the thread pointer; 0: a register
    extra_register_notes: tuple[int, ...]  # types; of vector registers, which may hold pointers
    # Prefix of the names of the registers of 128 bits with which NT_PRFPREG begins; "" for x86's
    # images, whose layout is in register_words.py.
    vector_prefix: str
    dtv_offset: int  # of glibc's DTV from the thread pointer (sysdeps/ARCH/nptl/tls.h, tcbhead_t)
    # Whether thread-local variables are above the thread pointer, behind two words (variant I of
    # ELF Handling For Thread-Local Storage), or below it (variant II).
    variables_above: bool
    system_call: bytes  # the instruction
    system_call_number: str  # the register that keeps the number during the call
    mapping_calls: tuple[int, ...]  # mmap, munmap, brk, mremap, madvise
    breakpoint: bytes  # the instruction that debuggers write
    # (the name that both GDB and LLDB have for a register, ours) where they differ.
    aliases: tuple[tuple[str, str], ...] = ()
    tag_note: int = 0  # type of the note that says whether pointers may have tags; see tags.py
    page: int = 4096
    pages: tuple[int, ...] = (4096,)  # all sizes that a kernel may have been built with
    # A signal handler returns to this code, with the stack pointer this many bytes below what was
    # interrupted: registers in the order of `dwarf_registers`. b"": call frame information has it.
    signal_return: bytes = b""
    signal_registers: int = 0

    @property
    def word_format(self) -> str:
        """The struct format of one word, with its byte order."""
        return ("<" if self.byteorder == "little" else ">") + {4: "I", 8: "Q"}[self.word]

    @property
    def all_registers(self) -> tuple[str, ...]:
        """With the thread pointer, where that is none of `registers`."""
        return self.registers if self.thread_pointer in ("", *self.registers) else (*self.registers, self.thread_pointer)

    def debugger_name(self, register: str) -> str:
        """What debuggers call a register."""
        return next((theirs for theirs, ours in self.aliases if ours == register), register)

    @property
    def top(self) -> int:
        """The end of the memory that processes usually have."""
        return 1 << self.address_bits

    @property
    def mask(self) -> int:
        return (1 << (8 * self.word)) - 1

    @property
    def register_notes(self) -> tuple[int, ...]:
        """Types of the notes that have more registers than NT_PRSTATUS."""
        return (*self.extra_register_notes, self.thread_pointer_note) if self.thread_pointer_note else self.extra_register_notes

    def with_page(self, size: int) -> Arch:
        """The same with pages of this size, if there are such."""
        return replace(self, page=size) if size != self.page and size in self.pages else self

    def unpack(self, data: bytes) -> tuple[int, ...]:
        """All whole words of `data`."""
        n = len(data) // self.word
        return struct.unpack(self.word_format[0] + str(n) + self.word_format[1], data[: n * self.word])


NT_PRFPREG = 2
NT_X86_XSTATE = 0x202
NT_ARM_TLS, NT_ARM_SVE, NT_ARM_TAGGED_ADDR_CTRL = 0x401, 0x405, 0x409

X86_64 = Arch(
    name="x86-64",
    machine=62,
    word=8,
    byteorder="little",
    address_bits=47,
    red_zone=128,
    prstatus_tid=32,
    prstatus_registers=112,
    registers=(
        *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
        *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
    ),
    sp="rsp",
    pc="rip",
    frame_pointer="rbp",
    link_register="",
    # System V ABI, AMD64 supplement 1.0, figure 3.36
    dwarf_registers=(
        *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
        *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
    ),
    thread_pointer="fs_base",
    thread_pointer_note=0,
    extra_register_notes=(NT_PRFPREG, NT_X86_XSTATE),
    vector_prefix="",
    dtv_offset=8,
    variables_above=False,
    system_call=b"\x0f\x05",
    system_call_number="orig_rax",
    mapping_calls=(9, 11, 12, 25, 28),
    breakpoint=b"\xcc",  # int3
)

AARCH64 = Arch(
    name="AArch64",
    machine=183,
    word=8,
    byteorder="little",
    address_bits=48,
    red_zone=0,  # AAPCS64, 6.4.5.1: what is below the stack pointer may be overwritten at any time
    prstatus_tid=32,
    prstatus_registers=112,
    registers=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
    sp="sp",
    pc="pc",
    frame_pointer="x29",
    link_register="x30",
    # DWARF for the Arm 64-bit Architecture 2023Q3, 4.1
    dwarf_registers=(*(f"x{number}" for number in range(31)), "sp", "pc"),
    thread_pointer="tpidr_el0",
    thread_pointer_note=NT_ARM_TLS,
    extra_register_notes=(NT_PRFPREG, NT_ARM_SVE),
    vector_prefix="v",
    dtv_offset=0,
    variables_above=True,
    system_call=b"\x01\0\0\xd4",  # svc #0
    system_call_number="x8",
    mapping_calls=(222, 215, 214, 216, 233),
    breakpoint=b"\0\0\x20\xd4",  # brk #0
    aliases=(("cpsr", "pstate"), ("tpidr", "tpidr_el0")),
    tag_note=NT_ARM_TAGGED_ADDR_CTRL,
    pages=(4096, 16384, 65536),
    # mov x8, #__NR_rt_sigreturn; svc #0 (Linux arch/arm64/kernel/vdso/sigreturn.S); struct
    # rt_sigframe (signal.c): siginfo 128, then ucontext, with uc_mcontext.regs at 184
    signal_return=b"\x68\x11\x80\xd2\x01\0\0\xd4",
    signal_registers=128 + 184,
)

ARCHES: tuple[Arch, ...] = (X86_64, AARCH64)
