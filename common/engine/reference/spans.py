"""The address ranges that contain blocks."""

from __future__ import annotations

from findleaks.engine.reference.blocks import COUNT_BITS, PureBlocks

COUNT_MASK = (1 << COUNT_BITS) - 1
SEGMENT_GAP = 1 << 20  # minimum number of bytes between ranges that are searched separately


def spans(blocks: PureBlocks) -> tuple[list[int], list[int]]:
    """Return the starts and the ends of the address ranges that contain blocks. These ranges are at
    least SEGMENT_GAP apart."""
    starts: list[int] = []
    ends: list[int] = []
    last = -SEGMENT_GAP - 1
    all_starts, sizes = blocks.starts, blocks.sizes
    for page in blocks.pages.values():  # in ascending order
        first = page >> COUNT_BITS
        end = first + (page & COUNT_MASK) - 1
        if all_starts[first] - last > SEGMENT_GAP:
            if starts:
                ends.append(last)
            starts.append(all_starts[first])
        last = all_starts[end] + max(sizes[end], 1)
    if starts:
        ends.append(last)
    return starts, ends
