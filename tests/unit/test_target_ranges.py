"""Lists of ranges: union, difference and look-up, and their time for many ranges."""

from __future__ import annotations

from hostile import lines_run
from hypothesis import given
from hypothesis import strategies as st

from findleaks.target.base import Piece, Range
from findleaks.target.ranges import blank_out, merge_ranges, range_at, subtract, without_holes

SOME = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda t: Range(t[0], t[0] + t[1])), max_size=12)


def members(ranges: list[Range]) -> set[int]:
    return {address for start, end in ranges for address in range(start, end)}


def test_ranges_are_merged() -> None:
    assert merge_ranges([Range(5, 9), Range(1, 3), Range(3, 5), Range(20, 20), Range(30, 25), Range(6, 7)]) == [Range(1, 9)]
    ranges = [Range(1, 3), Range(5, 9)]
    assert [range_at(ranges, a) for a in (0, 1, 2, 3, 5, 8, 9)] == [None, ranges[0], ranges[0], None, ranges[1], ranges[1], None]


@given(SOME, st.integers(0, 40), st.integers(0, 30))
def test_holes_are_blanked(holes: list[Range], start: int, size: int) -> None:
    holes = merge_ranges(holes)
    piece = Piece(start, memoryview(bytearray(b"x" * size)))
    made = blank_out(piece, holes)
    assert made.address == start
    assert bytes(made.data) == bytes(0 if start + i in members(holes) else ord("x") for i in range(size))
    assert bytes(piece.data) == b"x" * size
    assert (made is piece) is (b"\0" not in bytes(made.data))


@given(SOME, st.integers(0, 40), st.integers(0, 3))
def test_pieces_without_holes(holes: list[Range], start: int, large: int) -> None:
    """Words outside of the holes are complete. Words in holes are left out or are zeros. Only small pieces are copied."""
    holes = merge_ranges(holes)
    piece = Piece(start, memoryview(bytearray(b"x" * (large << 16 or 100))))
    made = list(without_holes(piece, holes, 4))
    found = {one.address + i for one in made for i, byte in enumerate(one.data) if byte}
    assert found == set(range(start, start + len(piece.data))) - members(holes)
    assert all(one.address + len(one.data) <= other.address for one, other in zip(made, made[1:]))
    assert len(made) == 1 or all((one.address - start) % 4 == 0 or one.address % 4 == 0 for one in made)


@given(SOME, SOME)
def test_rest_is_covered_by_no_hole(ranges: list[Range], holes: list[Range]) -> None:
    left = subtract(merge_ranges(ranges), holes)
    assert members(left) == members(ranges) - members(holes)
    assert left == sorted(left)
    assert all(start < end for start, end in left)


def test_many_ranges_and_holes_take_no_time() -> None:
    ranges = [Range(i * 100, i * 100 + 90) for i in range(70_000)]
    holes = [Range(0, 1 << 40), *(Range(i * 100 + 10, i * 100 + 20) for i in range(70_000))]
    left: list[list[Range]] = []
    lines_run(lambda: left.extend((subtract(ranges, holes), subtract(ranges, holes[1:]))), 10_000_000)
    assert [len(one) for one in left] == [0, 140_000]
