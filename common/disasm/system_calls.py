"""Tables of Linux system calls, with the registers that each call takes as arguments.
Sources: number of arguments: Linux 6.18, SYSCALL_DEFINE (/sys/kernel/tracing/events/syscalls); call
numbers: arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl (AArch64); arguments of futex
operations: futex(2); registers: syscall(2)."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.disasm.registers import GENERAL, general
from findleaks.value_classes import NamedTuple

SYSCALL = b"\x0f\x05"
RESTARTED = (-512, -513, -514, -516)
"""If a thread is stopped during a system call, and the kernel will restart the call, the register
for the result contains one of these numbers (ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and
ERESTART_RESTARTBLOCK, include/linux/errno.h). The program never gets them."""
_SHARED_FROM = 424
_SHARED = "426435253322343456543421254"
"""Numbers of arguments of consecutive calls that are the same on all architectures. The key is the
number of the first call."""


class SystemCalls(NamedTuple):
    """The system calls of an architecture."""

    instruction: bytes
    registers: tuple[str, ...]  # general registers by number
    arguments: tuple[str, ...]
    counts: str  # digit N: number of arguments of call N
    futex: int
    # Calls that do not return: rt_sigreturn (loads registers from memory), exit…
    ending: frozenset[int]
    number: str  # register of the call number, by `registers`
    number_kept: str  # register that has the number during the call, by Arch.registers
    result: str
    overwritten: int
    # Where a thread that will restart its call is stopped: True: before the instruction, with all
    # arguments in registers (Linux arch/arm64/kernel/signal.c, do_signal); False: after it.
    restarts_at: bool

    def argument_count(self, number: int) -> int:
        """Return the number of arguments of a call; 6 if it is unknown."""
        if 0 <= number < len(self.counts):
            return int(self.counts[number])
        return int(_SHARED[number - _SHARED_FROM]) if _SHARED_FROM <= number < _SHARED_FROM + len(_SHARED) else 6


X86_64_CALLS = SystemCalls(
    instruction=SYSCALL,
    registers=GENERAL,
    arguments=("rdi", "rsi", "rdx", "r10", "r8", "r9"),
    counts=(  # restart_syscall, 219, continues another call: all arguments count
        "333122233632144034433215053333331202213043336633232334555003142133412453321122321122122123223331222114030110020002222333"
        "311112224322236122232322311122210032652121012522142213666664666666035554443332222163362153366166531644342112224144326635"
        "41552365545320324434534345343365123644464632144244213215545525453214236656345332635133666421564"
    ),
    futex=202,
    ending=frozenset((15, 60, 231)),
    number="rax",
    number_kept="orig_rax",
    result="rax",
    overwritten=general("rax", "rcx", "r11"),
    restarts_at=False,
)
AARCH64_CALLS = SystemCalls(
    instruction=b"\x01\0\0\xd4",  # svc #0
    registers=tuple(f"x{number}" for number in range(31)),
    arguments=tuple(f"x{number}" for number in range(6)),
    counts=(  # restart_syscall, 128, continues another call: all arguments count
        "213355554443332222621461331323322433354252622224311123534102433333344554654464442011424241221115116232236663214122243423"
        "123301126223224424303242121333311121102212222215322100000001415523235434433331343233336655233312554553642133221033565346"
        "4545666666666666666644255321246656345332351336664215646"
    ),
    futex=98,
    ending=frozenset((139, 93, 94)),
    number="x8",
    number_kept="x8",
    result="x0",
    overwritten=1,
    restarts_at=True,
)


def argument_mask(number: int, registers: Mapping[str, int], calls: SystemCalls = X86_64_CALLS) -> int:
    """Return the mask of the registers that a system call takes as arguments.
    `registers` may be incomplete. It is needed only for futex, whose arguments depend on its
    operation."""
    names = calls.arguments[: calls.argument_count(number)]
    if number == calls.futex and calls.arguments[1] in registers:
        operation = registers[calls.arguments[1]] & 0x7F  # without FUTEX_PRIVATE_FLAG and above
        if operation in (0, 1, 6, 7, 13):  # WAIT, WAKE, LOCK_PI, UNLOCK_PI, LOCK_PI2
            names = calls.arguments[:4]
        elif operation == 9:  # WAIT_BITSET
            names = (*calls.arguments[:4], calls.arguments[5])
    return sum(1 << calls.registers.index(name) for name in names)
