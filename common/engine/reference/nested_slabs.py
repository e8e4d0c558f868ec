"""Blocks with slabs inside, for the Python engine."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from findleaks.engine import shared
from findleaks.engine.terms import RUN, State
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.engine.reference.blocks import PureBlocks


def append_nested(blocks: PureBlocks, outer: PureBlocks, first: int, last: int, slabs: array[int], runs: array[int]) -> array[int]:
    """See Blocks.append_nested."""
    divided = list(_divide_runs(slabs, runs))
    left_out: array[int] = array("Q")
    opened = False  # a slab is in the block `first`
    for number, (slab, own) in enumerate(divided):
        while first < last and outer.starts[first] + outer.sizes[first] <= slab.start:
            if not opened:
                blocks.append_blocks(outer, first, first + 1)
            first, opened = first + 1, False
        start, end = (outer.starts[first], outer.starts[first] + outer.sizes[first]) if first < last else (0, 0)
        if not start <= slab.start < slab.end <= end or outer.states[first] != State.IN_USE:
            left_out.append(number)
            continue
        if not opened and slab.start > start:
            blocks.append([start], [slab.start - start], [State.METADATA])
        opened = True
        blocks.append_runs(own)
    blocks.append_blocks(outer, first + opened, last)
    return left_out


def _divide_runs(slabs: array[int], runs: array[int]) -> Iterator[tuple[Range, array[int]]]:
    """Yield each slab and its runs. Raises ValueError if the slabs do not ascend, or if a run is in
    no slab."""
    at, floor = 0, 0
    for start, end in zip(slabs[::2], slabs[1::2]):
        begin = at
        while at < len(runs) and runs[at] < end:
            first, stride, size, count = runs[at : at + 4]
            at += RUN
            if first < start or (count and (count - 1) * stride + size > end - first):
                raise ValueError(shared.NOT_NESTED)
        if start < floor or end <= start:
            raise ValueError(shared.NOT_NESTED)
        floor = end
        yield Range(start, end), runs[begin:at]
    if at < len(runs):
        raise ValueError(shared.NOT_NESTED)
