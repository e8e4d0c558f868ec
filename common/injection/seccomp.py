"""Evaluate a thread's seccomp filters before a system call, because evaluation by the kernel may
end the process.

A filter is a classic BPF program over struct seccomp_data (Linux include/uapi/linux/seccomp.h,
filter.h, bpf_common.h). The strictest of several filters decides. A tracer with CAP_SYS_ADMIN can
read the filters (ptrace(2), PTRACE_SECCOMP_GET_FILTER)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

ALLOW, LOG = 0x7FFF0000, 0x7FFC0000
KILL = 0x80000000
_ACTION = 0xFFFF0000
_X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64
_DATA = struct.Struct("<iIQ6Q")
_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1


class Step(NamedTuple):
    """A BPF instruction, struct sock_filter: `true` and `false` are jump offsets (jt, jf)."""

    code: int
    true: int
    false: int
    k: int


def program(data: bytes) -> list[Step]:
    return [Step(*row) for row in struct.iter_unpack("<HBBI", data)]


def is_allowed(filters: Sequence[Sequence[Step]], number: int, instruction: int, arguments: Sequence[int]) -> bool:
    """Whether all filters allow the system call that the `syscall` instruction at address
    `instruction` makes."""
    padded = [*(value & _M64 for value in arguments), 0, 0, 0, 0, 0, 0][:6]
    data = _DATA.pack(number, _X86_64, instruction + 2, *padded)
    return all(verdict(one, data) & _ACTION in (ALLOW, LOG) for one in filters)


def verdict(steps: Sequence[Step], data: bytes) -> int:
    """Execute a filter on `data` (struct seccomp_data). Returns the filter's return value, or KILL
    if the filter is malformed."""
    a = x = at = 0
    memory = [0] * 16
    for _ in range(len(steps)):  # jumps lead forward only
        if not 0 <= at < len(steps):
            return KILL
        code, true, false, k = steps[at]
        at += 1
        kind = code & 7
        if kind in (0, 1):  # load into A, X
            mode = code & 0xE0
            if mode == 0x20 and k <= len(data) - 4:
                value = int.from_bytes(data[k : k + 4], "little")
            elif mode == 0x60 and k < 16:
                value = memory[k]
            elif mode in (0x00, 0x80):
                value = k if mode == 0x00 else len(data)
            else:
                return KILL
            a, x = (value, x) if kind == 0 else (a, value)
        elif kind in (2, 3) and k < 16:
            memory[k] = a if kind == 2 else x
        elif kind == 4:
            a = _arithmetic(code & 0xF0, a, x if code & 8 else k)
        elif kind == 5:
            other = x if code & 8 else k
            tests = {0x10: a == other, 0x20: a > other, 0x30: a >= other, 0x40: bool(a & other)}
            at += k if code & 0xF0 == 0 else true if tests.get(code & 0xF0, False) else false
        elif kind == 6:
            return a if code & 0x18 == 0x10 else k
        elif kind == 7:
            a, x = (x, x) if code & 0x80 else (a, a)
        else:
            return KILL
    return KILL


def _arithmetic(operation: int, a: int, b: int) -> int:
    if operation in (0x60, 0x70):
        return (a << b if operation == 0x60 else a >> b) & _M32 if b < 32 else 0
    made = {0x00: a + b, 0x10: a - b, 0x20: a * b, 0x30: a // b if b else 0, 0x40: a | b, 0x50: a & b, 0x80: -a, 0xA0: a ^ b}
    return made.get(operation, 0) & _M32
