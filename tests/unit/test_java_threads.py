"""Blocks that a Java thread uses, although nothing refers to their starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.runtimes.jvm.threads import list_event_blocks

THREAD, BLOCK, LISTED, SIZE = 0x10000, 0x20010, 0x40000, 0x1B8


@pytest.mark.parametrize(
    ("word", "variable", "expected"),
    [
        (0x20100, 0, [BLOCK]),  # the first multiple of 256 after the start of the block
        (0x20200, 0, []),  # a later one
        (0x20110, 0, []),
        (BLOCK, 0, []),
        (0x30100, 0, []),  # no block
        (0, 0x40100, [LISTED, BLOCK]),  # the head of the list of events without a thread
    ],
)
def test_events_of_threads(word: int, variable: int, expected: list[int]) -> None:
    """The event in the list refers to the next one, which refers back."""
    contents = {THREAD: [7, word], 0x40100: [0x20100], 0x20100: [variable]}
    memory = SimpleNamespace(size=8, words=lambda start, count: contents.get(start, [THREAD])[:count])
    tables: Any = SimpleNamespace(
        memory=memory,
        fields=(),
        word=lambda kind, field, start=0: 0x1000,
        int32=lambda kind, field, start: 1 if start else None,
        target=SimpleNamespace(is_interrupted=lambda: False),
    )
    starts = [THREAD, BLOCK, LISTED]

    def look_up(address: int) -> Any:
        return next(((at, start) for at, start in enumerate(starts) if start <= address < start + SIZE), None)

    blocks: Any = SimpleNamespace(lookup=look_up, size=lambda index: SIZE)
    assert list(list_event_blocks(tables, blocks, [variable])) == expected
