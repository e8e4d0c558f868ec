"""Which slots of a span of Go's heap have objects."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import State
from findleaks.runtimes.go.spans import ObjectSpan, build_blocks

HEAP, BITS, SLOTS = 0xC000000000, 0x7F0000000FE0, 248


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
@pytest.mark.parametrize(("bits", "used"), [(b"\x0f".ljust(32, b"\0"), 4), (b"\xff" * 31 + b"\0", SLOTS), (b"", SLOTS)])
def test_bits_before_memory_that_is_not_mapped(engine: Any, bits: bytes, used: int) -> None:
    """Go's bitmaps have different sizes. If a bitmap is unreadable, each slot counts as an object, because references would be missed."""
    span = ObjectSpan(HEAP, HEAP + 8192, 32, SLOTS, 0, 8, BITS, 0, 0)
    memory = {HEAP: bytes(8192), **({BITS: bits} if bits else {})}
    blocks = build_blocks(Memory(FakeTarget(memory)), engine(), [span])
    assert len(blocks) == SLOTS
    assert sum(blocks.state(index) == State.IN_USE for index in range(SLOTS)) == used
