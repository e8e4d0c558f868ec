"""GDB's disassembler, for what derives facts from code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import gdb
from findleaks.target.base import Disassembled

ARCHITECTURES = ("i386:x86-64", "i386:x86-64:intel")
"""GDB's names of what we read: with another one, the user has set it."""

FLAVOR = "disassembly-flavor"


class Disassembly:
    """findleaks.target.base.Disassembler. What GDB has of a core's code may be from another file than the core's, which it only warns of:
    with `same`, nothing is told of bytes that are not those asked for. Of a process it has the code without its breakpoints."""

    def __init__(self, inferior: Any, same: bool = False) -> None:
        self._inferior, self._same = inferior, same

    def __call__(self, address: int, code: bytes) -> Optional[Sequence[Disassembled]]:
        end = address + len(code)
        try:
            architecture = self._inferior.architecture()
            if architecture.name() not in ARCHITECTURES or (self._same and bytes(self._inferior.read_memory(address, len(code))) != code):
                return None
            with _flavor():
                rows = architecture.disassemble(address, end - 1)
        except (RuntimeError, AttributeError, OverflowError, ValueError):  # gdb.error, or older than GDB 10
            return None
        found = [Disassembled(int(row["addr"]), int(row["length"]), str(row["asm"])) for row in rows]
        return [one for one in found if one.address + one.length <= end] or None


@contextmanager
def _flavor() -> Iterator[None]:
    """AT&T's flavor inside, whichever the user likes."""
    kept = gdb.parameter(FLAVOR)
    if kept == "att":
        yield
        return
    gdb.execute(f"set {FLAVOR} att", to_string=True)
    try:
        yield
    finally:
        gdb.execute(f"set {FLAVOR} {kept}", to_string=True)
