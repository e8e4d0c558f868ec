"""The spread of types: claims that contradict each other, that become certain, and pointers to blocks of pools."""

from __future__ import annotations

from array import array

import pytest
from spreads import ENGINES, one_heap

from findleaks.engine.contract import Engine
from findleaks.engine.type_spread import DISPUTED, INFERRED, LAYOUT_MASK, LEVEL_SHIFT, QUESTION, ROOT, Level, Question


@ENGINES
def test_contradictions_are_retracted_with_what_follows_from_them(engine: Engine) -> None:
    """The root makes block 0 a node, block 2 makes it a leaf: the claims of block 0, and of block 1, to which it refers, are dropped."""
    spread = one_heap(engine, {0x8000: 0x10000, 0x8008: 0x10040, 0x10000: 0x10020, 0x10040: 0x10000})
    node = spread.add_layout((0, 24, 1, 0, 1, 0, 0), (0, 5))
    leaf = spread.add_layout((0, 24, 1, 0, 0, 0, 0), ())
    head = spread.add_layout((0, 16, 1, 0, 2, 0, 0), (0, 5, 8, 7))
    holder = spread.add_layout((0, 24, 1, 0, 1, 0, 0), (0, 6))
    spread.add_roots(array("Q", [0x8000]), array("Q", [16]), array("I", [head]))
    claims = {5: node | Level.EXACT << LEVEL_SHIFT, 6: leaf | Level.EXACT << LEVEL_SHIFT, 7: holder | Level.EXACT << LEVEL_SHIFT}
    while not spread.run(100):
        questions = spread.questions()
        rows = [questions[at : at + QUESTION] for at in range(0, len(questions), QUESTION)]
        spread.answer(questions, array("I", [claims[row[0]] if row[0] >> 32 == Question.RULE else 0 for row in rows]))
    assert spread.disputes() == [0]
    assert spread.claims()[1] & LAYOUT_MASK == node
    assert spread.retract() == 1
    assert not spread.claims()[1]


@ENGINES
@pytest.mark.parametrize("agrees", [0, 1, 2], ids=["no", "possibly", "yes"])
@pytest.mark.parametrize("first", [0x8008, 0x8010])
def test_certain_pointers_confirm_inferred_claims(engine: Engine, agrees: int, first: int) -> None:
    """The root refers to the first block of a list, and to block 3, whose claims are inferred. Two pointers of the root to block 3 have
    different types. If they contradict each other, block 3 has no claim, whichever is followed first."""
    words = {0x8000: 0x10000, 0x8008: 0x10060, 0x8010: 0x10060, 0x10000: 0x10020, 0x10020: 0x10040}
    spread = one_heap(engine, words)
    node = spread.add_layout((0, 24, 1, 0, 1, 0, 0), (0, 5))
    leaf = spread.add_layout((0, 24, 1, 0, 0, 0, 0), ())
    head = spread.add_layout((0, 24, 1, 0, 3, 0, 0), (0, 5, first & 0x18, 6, first & 0x18 ^ 0x18, 5))
    spread.add_roots(array("Q", [0x8000]), array("Q", [24]), array("I", [head]))
    assert spread.seed(0, node, Level.EXACT, True) and spread.seed(3, leaf, Level.EXACT, True)
    claims = {5: node | Level.EXACT << LEVEL_SHIFT, 6: leaf | Level.EXACT << LEVEL_SHIFT}

    def settle_all() -> None:
        while not spread.run(100):
            questions = spread.questions()
            spread.answer(questions, array("I", [claims.get(first, agrees) for first in questions[::QUESTION]]))

    settle_all()
    assert [bool(claim & INFERRED) for claim in spread.claims()[:4]] == [True] * 4
    spread.confirm()
    settle_all()
    assert [bool(claim & INFERRED) for claim in spread.claims()[:3]] == [False] * 3
    assert [claim & LAYOUT_MASK for claim in spread.claims()[:5]] == [node, node, node, leaf if agrees else 0, 0]
    assert spread.disputes() == ([] if agrees else [3])
    assert list(spread.origins()[:3]) == [ROOT, 0, 1]


@ENGINES
@pytest.mark.parametrize("level", [Level.EXACT, Level.BASE])
def test_pointers_to_pools_are_noted(engine: Engine, level: Level) -> None:
    """Block 1 belongs to a pool. It gets no claim; pointers to its parts are noted. An object in it refers to block 2, which gets a claim
    if this claim is certain: the object may refer to memory of a pool that was freed."""
    spread = one_heap(engine, {0x8000: 0x10028, 0x8008: 0x10028, 0x8010: 0x10038, 0x10028: 0x10040})
    node = spread.add_layout((0, 16, 1, 0, 1, 0, 0), (0, 5))
    head = spread.add_layout((0, 24, 1, 0, 3, 0, 0), (0, 5, 8, 6, 16, 5))
    spread.set_pools(array("I", [1]))
    spread.add_roots(array("Q", [0x8000]), array("Q", [24]), array("I", [head]))
    assert spread.run(100) and not spread.questions()
    rows = spread.take_pool_pointers()
    # 0x10038 is the end of the block.
    assert list(rows) == [ROOT, 0x8000, 0x10028, 5, ROOT, 0x8008, 0x10028, 6]
    assert not spread.take_pool_pointers()
    spread.add_roots(array("Q", [0x10028]), array("Q", [16]), array("I", [node]))
    assert not spread.run(100)
    questions = spread.questions()
    assert list(questions) == [5, 0, 24]
    spread.answer(questions, array("I", [node | level << LEVEL_SHIFT]))
    assert spread.run(100)
    assert [spread.claims()[1], spread.claims()[2] & LAYOUT_MASK] == [DISPUTED, node if level == Level.EXACT else 0]
