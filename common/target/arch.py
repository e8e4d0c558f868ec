"""Table of architectures, with all differences between them. No other file may assume x86-64.

Register positions are those of elf_gregset_t, as in an NT_PRSTATUS note (Linux 6.1:
arch/x86/include/asm/user_64.h and user_32.h, struct user_regs_struct; arch/arm64, riscv, powerpc,
include/uapi/asm/ptrace.h, struct user_pt_regs, user_regs_struct, pt_regs; arch/arm and s390,
include/asm/elf.h, elf_gregset_t, and ptrace.h). Signal frames: struct rt_sigframe in
arch/*/kernel/signal.c. Thread pointers: glibc 2.36, sysdeps/*/nptl/tls.h."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Optional, Union

from findleaks.target.encoded_numbers import numbers
from findleaks.value_classes import NamedTuple

Words = Union["memoryview", "array[int]"]


@lru_cache(maxsize=64)
def _structure(word: str, long_alignment: int, members: str) -> struct.Struct:
    made, end, alignment = word[0], 0, 1
    for member in members.replace("P", word[1]):
        size = struct.calcsize("=" + member)
        aligned = min(size, long_alignment)
        made += "x" * (-end % aligned) + member
        end += -end % aligned + size
        alignment = max(alignment, aligned)
    return struct.Struct(made + "x" * (-end % alignment))


class Arch(NamedTuple):
    name: str
    machine: int  # e_machine
    word: int  # bytes of a word (a pointer)
    byteorder: Literal["little", "big"]
    address_bits: int  # bits of the addresses that mmap returns by default
    red_zone: int  # bytes below the stack pointer that may be in use
    registers: tuple[str, ...]  # in order of elf_gregset_t; "": ignored
    sp: str
    pc: str
    frame_pointer: str
    # Offset of the saved frame pointer, which the return address follows; None: no such record.
    frame_record: Optional[int]
    link_register: str  # register that receives the return address; "": calls push it
    # DWARF register names by number; "" for other registers. If the program counter has a number,
    # its value in the caller's frame is the return address.
    dwarf_registers: tuple[str, ...]
    thread_pointer: str  # its register; if a note has it, a name chosen by findleaks
    thread_pointer_note: int  # type of the note that has the thread pointer; 0: it is in a register
    extra_register_notes: tuple[int, ...]  # note types of vector registers, which may hold pointers
    xsave_notes: tuple[int, ...]  # of these, notes with an XSAVE image or its beginning
    # Prefix of the names of the 128-bit registers that NT_PRFPREG begins with; "": other layout
    vector_prefix: str
    # Offset of the DTV pointer from the thread pointer, glibc (sysdeps/ARCH/nptl/tls.h, tcbhead_t)
    dtv_offset: int
    # Whether thread-local variables are above the thread pointer (variant I of ELF Handling For
    # Thread-Local Storage) or below it.
    variables_above: bool
    system_call: bytes  # regular expression of the instruction
    system_call_number: str  # register that keeps the call number during the call; "": none
    mapping_calls: tuple[int, ...]  # numbers of mmap, munmap, brk, mremap, madvise
    # (name in GDB and LLDB, name in this table), for names that differ.
    aliases: tuple[tuple[str, str], ...] = ()
    breakpoint: bytes = b""  # instruction that debuggers insert; b"": unknown
    tag_note: int = 0  # type of the note that records whether pointers may have tags; see tags.py
    page: int = 4096
    pages: tuple[int, ...] = (4096,)  # all page sizes that a kernel may be built with
    # (code that a signal handler returns to, bytes from its stack pointer to the saved registers,
    # in the order of `dwarf_registers` or `signal_order`); (): use call frame information.
    signal_returns: tuple[tuple[bytes, int], ...] = ()
    signal_order: tuple[str, ...] = ()
    thread_pointer_word: int = 0  # index in the note
    thread_pointer_bias: int = 0  # bytes from the thread control block up to the register's value
    variables_distance: int = 0  # bytes from the thread pointer up to the variables (variant I)
    frame_distance: int = 0  # bytes from the caller's stack pointer to its canonical frame address
    # If the word at the stack pointer is the caller's stack pointer (0 in the outermost frame):
    # bytes from the caller's stack pointer to the return address. 0: there is no such word.
    back_chain: int = 0
    code_bits: int = -1  # mask of code addresses; the other bits select an instruction set
    own_unwind_tables: bool = False  # ARM's format of unwind tables; see unwind/ehabi.py
    kept_registers: tuple[str, ...] = ()  # preserved by functions: the only roots; (): all are
    long_alignment: int = 8  # alignment of 64-bit numbers in structures

    @property
    def prstatus_tid(self) -> int:
        """Offset of pr_pid in NT_PRSTATUS (struct elf_prstatus, linux/elfcore.h)."""
        return {4: 24, 8: 32}[self.word]

    @property
    def prstatus_registers(self) -> int:
        """Offset of pr_reg in NT_PRSTATUS."""
        return {4: 72, 8: 112}[self.word]

    @property
    def word_format(self) -> str:
        """The struct format of one word, with its byte order."""
        return ("<" if self.byteorder == "little" else ">") + {4: "I", 8: "Q"}[self.word]

    def structure(self, members: str) -> struct.Struct:
        """Build a C structure: members "H", "I" and "Q" have 16, 32 and 64 bits, "P" is a word."""
        return _structure(self.word_format, self.long_alignment, members)

    @property
    def all_registers(self) -> tuple[str, ...]:
        """All register names, with `thread_pointer` appended if it is not among `registers`."""
        return self.registers if self.thread_pointer in ("", *self.registers) else (*self.registers, self.thread_pointer)

    def debugger_name(self, register: str) -> str:
        """Return the name that GDB and LLDB use for a register."""
        return next((theirs for theirs, ours in self.aliases if ours == register), register)

    @property
    def top(self) -> int:
        """End of the address range of user memory."""
        return 1 << self.address_bits

    @property
    def mask(self) -> int:
        return (1 << (8 * self.word)) - 1

    @property
    def register_notes(self) -> tuple[int, ...]:
        """Types of the notes with registers beyond NT_PRSTATUS."""
        return (*self.extra_register_notes, self.thread_pointer_note) if self.thread_pointer_note else self.extra_register_notes

    def pointed_to(self, thread_pointer: int) -> int:
        """Return the address of the thread control block, given the value of the thread pointer."""
        return thread_pointer - self.thread_pointer_bias & self.mask if thread_pointer else 0

    def leading(self, word: int, size: int) -> int:
        """Return the number in the first `size` bytes, in memory, of a word."""
        return word & (1 << 8 * size) - 1 if self.byteorder == "little" else word >> 8 * (self.word - size)

    def with_page(self, size: int) -> Arch:
        """Return this architecture with another page size; unchanged if it lacks this size."""
        return self._replace(page=size) if size != self.page and size in self.pages else self

    def pack(self, words: Sequence[int]) -> bytes:
        """Encode words in the target's byte order."""
        return struct.pack(f"{self.word_format[0]}{len(words)}{self.word_format[1]}", *words)

    def words(self, data: Union[bytes, bytearray, memoryview]) -> Words:
        """View all whole words of `data`; no copy if the byte order is this machine's."""
        return numbers(data, self.word, self.byteorder)

    def words32(self, data: Union[bytes, bytearray, memoryview]) -> Words:
        """View all whole 32-bit numbers of `data`; see `words`."""
        return numbers(data, 4, self.byteorder)

    def unpack(self, data: bytes) -> tuple[int, ...]:
        """Decode all whole words of `data`."""
        n = len(data) // self.word
        return struct.unpack(self.word_format[0] + str(n) + self.word_format[1], data[: n * self.word])


# Linux include/uapi/linux/elf.h
NT_PRFPREG = 2
NT_386_TLS, NT_X86_XSTATE, NT_PRXFPREG = 0x200, 0x202, 0x46E62B7F
NT_PPC_VMX, NT_PPC_VSX = 0x100, 0x102
NT_S390_VXRS_LOW, NT_S390_VXRS_HIGH = 0x309, 0x30A
NT_ARM_VFP, NT_ARM_TLS, NT_ARM_SVE, NT_ARM_TAGGED_ADDR_CTRL = 0x400, 0x401, 0x405, 0x409
NT_RISCV_VECTOR = 0x901

# The RISC-V ABI's names of registers, by number.
_RISCV = (
    *("zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "fp", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"),
    *("s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6"),
)

X86_64 = Arch(
    name="x86-64",
    machine=62,
    word=8,
    byteorder="little",
    address_bits=47,
    red_zone=128,
    registers=(
        *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
        *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
    ),
    sp="rsp",
    pc="rip",
    frame_pointer="rbp",
    frame_record=0,
    link_register="",
    # System V ABI, AMD64 supplement 1.0, figure 3.36
    dwarf_registers=("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)), "rip"),
    thread_pointer="fs_base",
    thread_pointer_note=0,
    extra_register_notes=(NT_PRFPREG, NT_X86_XSTATE),
    xsave_notes=(NT_PRFPREG, NT_X86_XSTATE),
    vector_prefix="",
    dtv_offset=8,
    variables_above=False,
    system_call=rb"\x0f\x05",
    system_call_number="orig_rax",
    mapping_calls=(9, 11, 12, 25, 28),
    breakpoint=b"\xcc",  # int3
    kept_registers=("rbx", "rbp", "rsp", "rip", "r12", "r13", "r14", "r15", "fs_base", "gs_base", "orig_rax"),
)

AARCH64 = Arch(
    name="AArch64",
    machine=183,
    word=8,
    byteorder="little",
    address_bits=48,
    red_zone=0,  # AAPCS64, 6.4.5.1: what is below the stack pointer may be overwritten at any time
    registers=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
    sp="sp",
    pc="pc",
    frame_pointer="x29",
    frame_record=0,
    link_register="x30",
    # DWARF for the Arm 64-bit Architecture 2023Q3, 4.1
    dwarf_registers=(*(f"x{number}" for number in range(31)), "sp", "pc"),
    thread_pointer="tpidr_el0",
    thread_pointer_note=NT_ARM_TLS,
    extra_register_notes=(NT_PRFPREG, NT_ARM_SVE),
    xsave_notes=(),
    vector_prefix="v",
    dtv_offset=0,
    variables_above=True,
    variables_distance=16,
    system_call=rb"\x01\0\0\xd4",  # svc #0
    system_call_number="x8",
    mapping_calls=(222, 215, 214, 216, 233),
    breakpoint=b"\0\0\x20\xd4",  # brk #0
    aliases=(("cpsr", "pstate"), ("tpidr", "tpidr_el0")),
    tag_note=NT_ARM_TAGGED_ADDR_CTRL,
    pages=(4096, 16384, 65536),
    # mov x8, #__NR_rt_sigreturn; svc #0 (Linux arch/arm64/kernel/vdso/sigreturn.S); struct
    # rt_sigframe (signal.c): siginfo 128, then ucontext, with uc_mcontext.regs at 184
    signal_returns=((b"\x68\x11\x80\xd2\x01\0\0\xd4", 128 + 184),),
    kept_registers=(*(f"x{n}" for n in range(19, 30)), *(f"v{n}" for n in range(8, 16)), "sp", "pc", "pstate", "tpidr_el0"),
)

I386 = Arch(
    name="i386",
    machine=3,
    word=4,
    address_bits=32,
    red_zone=0,
    byteorder="little",
    registers=(
        *("ebx", "ecx", "edx", "esi", "edi", "ebp", "eax", "ds", "es", "fs", "gs", "orig_eax"),
        *("eip", "cs", "eflags", "esp", "ss"),
    ),
    sp="esp",
    pc="eip",
    frame_pointer="ebp",
    frame_record=0,
    link_register="",
    # System V ABI, Intel386 supplement 1.1, table 2.14
    dwarf_registers=("eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"),
    thread_pointer="gs_base",
    thread_pointer_note=NT_386_TLS,  # struct user_desc: entry_number, base_addr, limit, flags
    thread_pointer_word=1,
    extra_register_notes=(NT_PRFPREG, NT_PRXFPREG, NT_X86_XSTATE),
    xsave_notes=(NT_PRXFPREG, NT_X86_XSTATE),
    vector_prefix="",
    dtv_offset=4,
    variables_above=False,
    system_call=rb"\xcd\x80",  # int $0x80, also where sysenter returns to
    system_call_number="orig_eax",
    mapping_calls=(192, 91, 45, 163, 219),
    breakpoint=b"\xcc",  # int3
    long_alignment=4,
)

# mov r7, #__NR_sigreturn or __NR_rt_sigreturn; svc #0: as ARM instructions, as in the kernel's own
# page (Linux arch/arm/kernel/sigreturn_codes.S), and as Thumb instructions. struct sigframe has
# uc_mcontext at 20, which has r0 at 12. struct rt_sigframe begins with 128 bytes of siginfo.
_ARM_SIGNAL_RETURNS = tuple(
    (code, 20 + 12 + more)
    for number, more in ((119, 0), (173, 128))
    for code in (
        bytes([number]) + b"\x70\xa0\xe3\0\0\0\xef",
        bytes([number]) + b"\x70\xa0\xe3" + bytes([number]) + b"\0\x90\xef",
        bytes([number]) + b"\x27\0\xdf",
        b"\x4f\xf0" + bytes([number]) + b"\x07\0\xdf",
    )
)

ARM = Arch(
    name="ARM",
    machine=40,
    word=4,
    address_bits=32,
    red_zone=0,
    byteorder="little",
    registers=(*(f"r{number}" for number in range(13)), "sp", "lr", "pc", "cpsr", "orig_r0"),
    sp="sp",
    pc="pc",
    frame_pointer="r11",
    frame_record=None,
    link_register="lr",
    # DWARF for the Arm Architecture 2023Q3, 4.1; findleaks chose the number of cpsr
    dwarf_registers=(*(f"r{number}" for number in range(13)), "sp", "lr", "pc", "cpsr"),
    thread_pointer="tpidruro",
    thread_pointer_note=NT_ARM_TLS,  # only in cores of 64-bit kernels; see thread_pointers.py
    extra_register_notes=(NT_ARM_VFP,),
    xsave_notes=(),
    vector_prefix="",
    dtv_offset=0,
    variables_above=True,
    variables_distance=8,
    system_call=rb"\0\xdf|\0\0\0\xef",  # svc 0, Thumb's and ARM's
    system_call_number="r7",
    mapping_calls=(192, 91, 45, 163, 220),
    code_bits=~1,  # bit 0: Thumb
    own_unwind_tables=True,
    signal_returns=_ARM_SIGNAL_RETURNS,
    signal_order=(*(f"r{number}" for number in range(13)), "sp", "lr", "pc", "cpsr"),
)

RISCV64 = Arch(
    name="RISC-V",
    machine=243,
    word=8,
    byteorder="little",
    address_bits=47,
    red_zone=0,
    registers=("pc", *_RISCV[1:]),
    sp="sp",
    pc="pc",
    frame_pointer="fp",
    frame_record=-16,
    link_register="ra",
    dwarf_registers=_RISCV,  # RISC-V ELF psABI 1.0, DWARF register numbers
    thread_pointer="tp",
    thread_pointer_note=0,
    extra_register_notes=(NT_PRFPREG, NT_RISCV_VECTOR),
    xsave_notes=(),
    vector_prefix="",
    dtv_offset=-16,
    variables_above=True,
    system_call=rb"\x73\0\0\0",  # ecall
    system_call_number="a7",
    mapping_calls=(222, 215, 214, 216, 233),
    # li a7, __NR_rt_sigreturn; ecall; siginfo 128, then ucontext, with uc_mcontext at 176
    signal_returns=((b"\x93\x08\xb0\x08\x73\0\0\0", 128 + 176),),
    signal_order=("pc", *_RISCV[1:]),
)

PPC64LE = Arch(
    name="PowerPC64",
    machine=21,
    word=8,
    byteorder="little",
    address_bits=47,
    red_zone=288,  # 64-Bit ELF V2 ABI 1.5, 2.2.3.4, protected zone
    registers=(
        *(f"r{number}" for number in range(32)),
        # The kernel uses msr, softe, trap, dar (the address of the last fault), dsisr, result.
        *("pc", "", "orig_r3", "ctr", "lr", "xer", "cr", "", "", "", "", ""),
    ),
    sp="r1",
    pc="pc",
    frame_pointer="r31",
    frame_record=None,
    link_register="lr",
    # 64-Bit ELF V2 ABI 1.5, table 2.31
    dwarf_registers=(*(f"r{number}" for number in range(32)), *[""] * 33, "lr", "ctr"),
    thread_pointer="r13",
    thread_pointer_note=0,
    thread_pointer_bias=0x7000,
    extra_register_notes=(NT_PRFPREG, NT_PPC_VMX, NT_PPC_VSX),
    xsave_notes=(),
    vector_prefix="",
    dtv_offset=-8,
    variables_above=True,
    system_call=rb"\x02\0\0\x44|\x01\0\0\x44",  # sc, scv 0
    system_call_number="r0",
    mapping_calls=(90, 91, 45, 163, 205),
    pages=(4096, 65536),
    back_chain=16,  # 64-Bit ELF V2 ABI 1.5, 2.2.3.1
)

S390X = Arch(
    name="s390x",
    machine=22,
    word=8,
    byteorder="big",
    address_bits=53,
    red_zone=0,
    # Access registers are pairs of 32 bits: the first is the thread pointer.
    registers=(
        *("pswm", "pc", *(f"r{number}" for number in range(16))),
        *("tp", *(f"acr{number}" for number in range(2, 16, 2)), "orig_r2"),
    ),
    sp="r15",
    pc="pc",
    frame_pointer="r11",
    frame_record=None,
    link_register="r14",
    # ELF Application Binary Interface s390x Supplement 1.6, 1.6.1
    dwarf_registers=tuple(f"r{number}" for number in range(16)),
    thread_pointer="tp",
    thread_pointer_note=0,
    extra_register_notes=(NT_PRFPREG, NT_S390_VXRS_LOW, NT_S390_VXRS_HIGH),
    xsave_notes=(),
    vector_prefix="",
    dtv_offset=8,
    variables_above=False,
    system_call=rb"\x0a.",  # svc
    system_call_number="",
    mapping_calls=(90, 91, 45, 163, 219),
    frame_distance=160,
    # Stack at svc __NR_rt_sigreturn: 160 bytes for callees, a copy of the instruction, siginfo,
    # ucontext (uc_mcontext at 40); at svc __NR_sigreturn: 160 bytes, sigcontext, registers.
    signal_returns=((b"\x0a\xad", 160 + 8 + 128 + 40), (b"\x0a\x77", 160 + 16)),
    signal_order=("pswm", "pc", *(f"r{number}" for number in range(16))),
)

ARCHES: tuple[Arch, ...] = (X86_64, AARCH64, I386, ARM, RISCV64, PPC64LE, S390X)
