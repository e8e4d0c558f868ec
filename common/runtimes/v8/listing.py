"""The one way from an address of the target to its instructions, for all that derives facts from code."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.runtimes.v8 import aarch64, decode, disassembly
from findleaks.runtimes.v8.decode import Instruction
from findleaks.target.base import Target


def listing(target: Target, address: int, size: int) -> Iterator[Instruction]:
    """The instructions of so many bytes, up to the first that is not known, or not whole. UnreadableMemory where not all can be read.

    Inside a debugger its disassembler reads them; our own decoder does where there is none, or it cannot read this code: the debugger
    has not the file, is set to another architecture, or is too old. AArch64's we decode always: an instruction is one word there, whose
    fields are no harder to read than their text."""
    code = target.read(address, size)
    if target.arch.name == "AArch64":
        return aarch64.instructions(code, address)
    if not code:
        return iter(())
    printed = target.disassembler(address, code) if target.disassembler is not None else None
    return disassembly.instructions(printed) if printed is not None else decode.instructions(code, address)


__all__ = ["listing"]
