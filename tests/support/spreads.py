"""Small heaps over which tests spread types."""

from __future__ import annotations

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.engine.type_spread import TypeSpread

ENGINES = pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])


def one_heap(engine: Engine, words: dict[int, int]) -> TypeSpread:
    """Return a spread over 16 blocks at 0x10000, 0x10020 and so on, and root memory at 0x8000. `words`: the words by address."""
    memory = bytearray(0x200)
    for address, value in words.items():
        if address >= 0x10000:
            memory[address - 0x10000 : address - 0x10000 + 8] = value.to_bytes(8, "little")
    root = bytearray(0x40)
    for address, value in words.items():
        if address < 0x10000:
            root[address - 0x8000 : address - 0x8000 + 8] = value.to_bytes(8, "little")
    blocks = engine.blocks(graphs.X86_64, 16)
    blocks.append(range(0x10000, 0x10200, 32), [24] * 16, [State.IN_USE] * 16)
    blocks.seal()
    spread = engine.type_spread(blocks)
    spread.use([graphs.piece(0x8000, bytes(root)), graphs.piece(0x10000, bytes(memory))])
    return spread
