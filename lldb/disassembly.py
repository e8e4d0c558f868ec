"""LLDB's disassembler, for what derives facts from code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import lldb
from findleaks.target.base import Disassembled

ARCHITECTURE = "x86_64"
"""The first part of the triple of what we read."""


class Disassembly:
    """findleaks.target.base.Disassembler. LLDB is given the bytes, with `process` those that it has without its breakpoints."""

    def __init__(self, target: Any, process: Optional[Any] = None) -> None:
        self._target, self._process = target, process

    def __call__(self, address: int, code: bytes) -> Optional[Iterator[Disassembled]]:
        if not self._target.IsValid() or not (self._target.GetTriple() or "").startswith(ARCHITECTURE + "-"):
            return None
        if self._process is not None:
            read = self._process.ReadMemory(address, len(code), lldb.SBError())
            code = bytes(read) if read and len(read) == len(code) else code
        place = lldb.SBAddress(lldb.SBSection(), address)
        listed = self._target.GetInstructionsWithFlavor(place, "att", code)
        return self._lines(listed, address) if listed.IsValid() and listed.GetSize() else None

    def _lines(self, listed: Any, address: int) -> Iterator[Disassembled]:
        """One by one, as LLDB makes the text when it is asked for: that takes some 30 µs."""
        for index in range(listed.GetSize()):
            one = listed.GetInstructionAtIndex(index)
            length = one.GetByteSize()
            yield Disassembled(address, length, f"{one.GetMnemonic(self._target) or ''} {one.GetOperands(self._target) or ''}")
            address += length
