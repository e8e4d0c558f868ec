"""Tests of the comparison of capacities with blocks (common/native/type_match.c)."""

from __future__ import annotations

from array import array

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.engine.type_spread import Question, Role, describe_capacity


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
@pytest.mark.parametrize(
    ("capacity", "pointer", "stride", "fits"),
    [
        (24, 0x10020, 1, 1),
        (25, 0x10020, 1, 0),
        (6, 0x10020, 1, 1),
        (5, 0x10020, 1, 0),  # more than twice as many were requested
        (1 << 62, 0x10020, 8, 0),
        (1 << 62, 0x10028, 8, 1),  # not the start of a block
        (0, 1, 1, 1),
        (0, 8, 1, 0),  # characters have no alignment of 8
        (0, 8, 24, 1),
        (0, 6, 24, 0),
        (0, 0, 1, 1),
    ],
)
def test_a_capacity_fits_its_buffer(engine: Engine, capacity: int, pointer: int, stride: int, fits: int) -> None:
    """Blocks have 24 bytes, of which the program requested at least 11."""
    blocks = engine.blocks(graphs.X86_64, 16)
    blocks.append([0x10000, 0x10020], [24] * 2, [State.IN_USE] * 2)
    blocks.seal()
    spread = engine.type_spread(blocks)
    spread.use([graphs.piece(0x10000, b"".join(one.to_bytes(8, "little") for one in (capacity, pointer, 0, 0, 0, 0, 0, 0)))])
    vector = spread.add_layout((0, 24, 1, 0, 0, 0, 1), (), (0, Role.PLAIN + describe_capacity(stride, 8)))
    indices = array("I", [0])
    found = spread.fits([vector], indices)
    if found is None:
        questions = spread.questions()
        assert list(questions) == [Question.UNREQUESTED << 32, 0, 24]
        spread.answer(questions, array("I", [13]))
        found = spread.fits([vector], indices)
    assert found == array("Q", [fits])
