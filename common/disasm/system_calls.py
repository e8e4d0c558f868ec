"""System calls of x86-64 Linux: which registers each takes as arguments. Sources: number of
arguments: Linux 6.18, SYSCALL_DEFINE (/sys/kernel/tracing/events/syscalls); numbers of calls:
arch/x86/entry/syscalls/syscall_64.tbl; the arguments that a futex operation takes: futex(2)."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.disasm.registers import general

SYSCALL = b"\x0f\x05"
SIGRETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
"""mov $15, %rax; syscall: the code that a signal handler returns to (glibc
sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c; musl's too)."""
RESTARTED = (-512, -513, -514, -516)
"""Values of rax in a thread that was stopped within a system call which will be restarted
(ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and ERESTART_RESTARTBLOCK, include/linux/errno.h); the
program never sees them."""
ENDING = {15, 60, 231}  # do not return: rt_sigreturn (registers come from memory), exit, exit_group
_FUTEX = 202
_ARGUMENT_COUNTS = (
    "333122233632144034433215053333331202213043336633232334555003142133412453321122321122122123223331222114030110020002222333"
    "311112224322236122232322311122210032652121012522142213666664666666035554443332222163362153366166531044342112224144326635"
    "41552365545320324434534345343365123644464632144244213215545525453214236656345332635133666421564"
)


def _argument_count(number: int) -> int:
    """A call's number of arguments, 6 if unknown. From 424 on all architectures share numbers."""
    if 0 <= number < len(_ARGUMENT_COUNTS):
        return int(_ARGUMENT_COUNTS[number])
    later = "426435253322343456543421254"
    return int(later[number - 424]) if 424 <= number < 424 + len(later) else 6


def taken(number: int, registers: Mapping[str, int]) -> int:
    """The mask of the registers that a system call takes as arguments. `registers`, in which some
    may be missing, are needed for futex, whose arguments depend on its operation."""
    arguments = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
    if number == _FUTEX and "rsi" in registers:
        operation = registers["rsi"] & 0x7F  # without FUTEX_PRIVATE_FLAG and the flags above
        if operation in (0, 1, 6, 7, 13):  # WAIT, WAKE, LOCK_PI, UNLOCK_PI, LOCK_PI2
            return general(*arguments[:4])
        if operation == 9:  # WAIT_BITSET
            return general(*arguments[:4], "r9")
    return general(*arguments[: _argument_count(number)])
