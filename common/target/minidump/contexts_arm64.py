"""Decode threads of an AArch64 minidump, in both formats of their contexts.

Layouts: Breakpad src/google_breakpad/common/minidump_cpu_arm64.h: MDRawContextARM64, which is
Microsoft's format, and MDRawContextARM64_Old, which LLDB also uses
(lldb/source/Plugins/Process/minidump/RegisterContextMinidump_ARM64.h). Flags in the context
distinguish the formats; the processor number of the dump does not. Neither format has the thread
pointer."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from findleaks.target.arch import AARCH64
from findleaks.target.base import Thread

_NAMES = (*(f"x{number}" for number in range(31)), "sp", "pc")
_GENERAL = struct.Struct("<33Q")
_VECTORS = 512  # bytes of v0 to v31
# Flags of Microsoft's format; the older format has one flag for all registers.
_CONTROL = ("x29", "x30", "sp", "pc", "pstate")


class _Form(NamedTuple):
    """Offsets in a context, and flags."""

    mark: int
    general: int
    pstate: int
    vectors: int
    control: int  # flag for the registers of _CONTROL


_FORMS = (_Form(0x400000, 8, 4, 272, 1), _Form(0x80000000, 8, 272, 284, 2))
_INTEGER, _FLOATS = 2, 4
_AT_HWCAP, _SVE = 16, 1 << 22  # Linux include/uapi/linux/auxvec.h; arch/arm64 …/asm/hwcap.h


def longer_vectors(auxv: Mapping[int, int]) -> bool:
    """Return whether the process has registers of the Scalable Vector Extension; True if
    unknown."""
    return bool(auxv.get(_AT_HWCAP, _SVE) & _SVE)


def thread(tid: int, context: memoryview, pointer: int) -> tuple[Thread, bool]:
    """See contexts.thread. Registers whose flag is not set, or that are cut off, are omitted."""
    registers: dict[str, int] = {}
    flags = int.from_bytes(context[:4], "little")
    form = next((form for form in _FORMS if flags & form.mark), None)
    if form is not None and len(context) >= form.general + _GENERAL.size:
        found = dict(zip(_NAMES, _GENERAL.unpack_from(context, form.general)))
        found["pstate"] = int.from_bytes(context[form.pstate : form.pstate + 4], "little")
        registers = {name: value for name, value in found.items() if flags & (form.control if name in _CONTROL else _INTEGER)}
    if pointer:
        registers[AARCH64.thread_pointer] = pointer
    words, names = list(registers.values()), list(registers)
    vectors = form is not None and bool(registers) and bool(flags & _FLOATS) and len(context) >= form.vectors + _VECTORS
    if form is not None and vectors:
        words += AARCH64.unpack(bytes(context[form.vectors : form.vectors + _VECTORS]))
        names += [f"v{number}" for number in range(32) for _ in range(2)]
    own = registers.get(AARCH64.thread_pointer, 0)
    return Thread(tid, registers, registers.get("sp", 0), registers.get("pc", 0), own, tuple(words), tuple(names)), vectors
