"""Find the register of each word that the kernel saved for an interrupted thread.

struct ucontext has uc_mcontext at offset 40 on x86-64, and at 176 on AArch64. It contains:

- on x86-64 the general registers and the address of the FPU's state (Linux
  arch/x86/include/uapi/asm/sigcontext.h, struct sigcontext_64), which is an XSAVE image;
- on AArch64 fault_address, the registers as in NT_PRSTATUS, and from 288 on, a multiple of 16,
  records that begin with a 32-bit type and a 32-bit size
  (arch/arm64/include/uapi/asm/sigcontext.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target
from findleaks.target.register_words import sve_words, xsave_words

SIGRETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
"""mov $15, %rax; syscall: the code to which a signal handler of x86-64 returns (glibc
sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c; the same in musl)."""
SIGINFO = 128  # bytes of the siginfo_t in front of struct ucontext, on most machines
_CONTEXT = 40
_SAVED = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx")
_STATE_AT = _CONTEXT + 23 * 8
# FP_XSTATE_MAGIC1 is at byte 464 of the FPU's state, before extended_size, xfeatures, xstate_size
_MAGIC = 0x46505853

_RECORDS_AT, _RECORDS_END = 176 + 288, 176 + 288 + 4096
_FPSIMD, _SVE = 0x46508001, 0x53564501  # FPSIMD_MAGIC, SVE_MAGIC
_MOST_RECORDS = 16


def saved_words(target: Target, context: int) -> Iterator[tuple[str, int]]:
    """Yield (register, address) of each word that the kernel saved in the struct ucontext at
    `context`. The register is "" if it is not known."""
    returns = target.arch.signal_returns
    if not returns:
        yield from _of_x86_64(target, context)
        return
    for number, name in enumerate(target.arch.registers):
        yield name, context + returns[0][1] - SIGINFO + 8 * number
    yield from _of_records(target, context)


def _of_x86_64(target: Target, context: int) -> Iterator[tuple[str, int]]:
    for number, name in enumerate(_SAVED):
        yield name, context + _CONTEXT + 8 * number
    try:
        state = target.word(context + _STATE_AT)
        marks = target.read(state + 464, 24) if state and state % 8 == 0 else b""
    except UnreadableMemory:
        return
    if int.from_bytes(marks[:4], "little") == _MAGIC:
        features, size = int.from_bytes(marks[8:16], "little"), int.from_bytes(marks[16:20], "little")
    else:
        features, size = 0, 512
    if marks and size <= 1 << 14:
        for number, name in enumerate(xsave_words(features, size)):
            yield name, state + 8 * number


def _of_records(target: Target, context: int) -> Iterator[tuple[str, int]]:
    at = context + _RECORDS_AT
    for _ in range(_MOST_RECORDS):
        try:
            kind, size, length = struct.unpack("<IIH", target.read(at, 10))
        except UnreadableMemory:
            return
        if not 8 <= size <= context + _RECORDS_END - at:
            return
        if kind == _FPSIMD:  # fpsr, fpcr, v0-31
            for number in range(64):
                yield f"v{number // 2}", at + 16 + 8 * number
        elif kind == _SVE and size > 16:
            for number, name in enumerate(sve_words(length, True, size)):
                yield name, at + 8 * number
        at += size
