"""Build the code of the stub of `count --inject`, with one copy for each patched function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from findleaks.counting.generated import stub as stubcode
from findleaks.injection.stub.relocate import Patch, relocate_code

STUB_BYTES = 8192  # bytes that are reserved for the stub of each patched function


class CountingCode(NamedTuple):
    """Implements patcher.StubCode. `counted`: functions whose calls are counted, each with its key.
    `steps`: functions that open or close a scope, each with the number that it adds to the thread's
    depth."""

    counted: Sequence[tuple[Patch, int]]
    steps: Sequence[tuple[Patch, int]]

    @property
    def patches(self) -> Sequence[Patch]:
        return [patch for patch, _ in (*self.counted, *self.steps)]

    @property
    def size(self) -> int:
        return STUB_BYTES * len(self.patches)

    def entry(self, number: int) -> int:
        return STUB_BYTES * number

    def at(self, address: int, table: int) -> bytes:
        made = bytearray()
        rows = [(stubcode.COUNT, *one) for one in self.counted] + [(stubcode.STEP, *one) for one in self.steps]
        for blob, patch, operand in rows:
            here = address + len(made)
            piece = bytearray(blob)
            distance = table - here - stubcode.TABLE - 4
            piece[stubcode.TABLE : stubcode.TABLE + 4] = distance.to_bytes(4, "little", signed=True)
            piece[stubcode.OPERAND : stubcode.OPERAND + 8] = (operand & (1 << 64) - 1).to_bytes(8, "little")
            piece += relocate_code(patch, here + len(blob))
            made += piece.ljust(STUB_BYTES, b"\xcc")
        return bytes(made)
