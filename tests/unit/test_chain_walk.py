"""The frames of an interpreter are inserted between the right native frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.injection.stub.chain_walk import ChainedFunctions, ChainWalk
from findleaks.injection.stub.table import NUMBER_AT, NUMBERED, UNKNOWN_FUNCTION, UNPAIRED, VALUE
from findleaks.target.base import Range
from findleaks.unwind.managed_frames import ChainedCall, ChainPart, ManagedFrames

STACK = Range(0x1000, 0x2000)
INNER, OUTER = Range(0x1000, 0x1100), Range(0x1100, 0x1200)


class Chain(ManagedFrames):
    def __init__(self, parts: Sequence[ChainPart], is_paired: bool = False) -> None:
        self._parts, self._paired = parts, is_paired

    @property
    def is_paired(self) -> bool:
        return self._paired

    def chain_parts(self, thread_pointer: int, stack: Range) -> Iterator[ChainPart]:
        assert (thread_pointer, stack) == (0x5000, STACK)
        return iter(self._parts)


def make_part(anchor: int, *names: str) -> ChainPart:
    return ChainPart(anchor, [ChainedCall(name, 8) for name in names])


def walk_frames(reader: Chain, frames: Sequence[tuple[bool, bool, Range]]) -> list[list[str]]:
    """Return the functions of each native frame, and of the end of the stack. A frame is a tuple: whether a signal
    handler returns to it, whether it may execute interpreted functions, and its address."""
    functions = ChainedFunctions()
    walk = ChainWalk(reader, 0x5000, functions)
    keys = [[key for key, _ in walk.nodes(*frame, STACK)] for frame in frames]
    keys.append([key for key, _ in walk.last_nodes()])
    return [["unpaired" if key == UNPAIRED else str(functions.find(key).function) for key in one] for one in keys]


def test_anchors_identify_native_frames() -> None:
    reader = Chain([make_part(0x1080, "a", "b"), make_part(0x1180, "c")])
    assert walk_frames(reader, [(False, True, INNER), (False, True, OUTER)]) == [["a", "b"], ["c"], []]
    # A native frame that may not execute functions gets none. The part of the chain that it passes is not given to another frame.
    assert walk_frames(reader, [(False, False, INNER), (False, True, OUTER)]) == [[], ["c"], []]


def test_interrupted_code_may_be_changing_the_chain() -> None:
    reader = Chain([make_part(0x1180, "c")])
    assert walk_frames(reader, [(True, False, INNER), (False, True, OUTER)]) == [[], [], []]


def test_pairs_have_equal_numbers() -> None:
    frames = [(False, True, INNER), (False, False, INNER), (False, True, OUTER)]
    assert walk_frames(Chain([make_part(0, "a"), make_part(0, "b")], True), frames) == [["a"], [], ["b"], []]
    assert walk_frames(Chain([make_part(0, "a")], True), frames) == [["a"], [], ["unpaired"], []]
    assert walk_frames(Chain([make_part(0, "a"), make_part(0, "b"), make_part(0, "c")], True), frames) == [["a"], [], ["b"], ["unpaired"]]


def test_functions_have_numbers() -> None:
    functions = ChainedFunctions()
    assert [functions.number(one) for one in ("a", "b", "a", None)] == [1, 2, 1, UNKNOWN_FUNCTION]
    assert functions.find(VALUE | NUMBERED | 2 << NUMBER_AT | 0xFFFFFFFE) == ("b", 0xFFFFFFFE)
    assert functions.find(VALUE | NUMBERED | UNKNOWN_FUNCTION << NUMBER_AT) == (None, 0)
