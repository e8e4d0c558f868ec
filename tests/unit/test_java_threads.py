"""Blocks that a Java thread uses, although nothing refers to their starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.runtimes.jvm.threads import list_event_blocks

THREAD, BLOCK, SIZE = 0x10000, 0x20010, 0x1B8


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0x20100, [BLOCK]),  # the first multiple of 256 after the start of the block
        (0x20200, []),  # a later one
        (0x20110, []),
        (BLOCK, []),
        (0x30100, []),  # no block
    ],
)
def test_events_of_threads(word: int, expected: list[int]) -> None:
    memory = SimpleNamespace(size=8, words=lambda start, count: [7, word][:count] if start == THREAD else [THREAD])
    tables: Any = SimpleNamespace(
        memory=memory, fields=(), word=lambda kind, field, start=0: 0x1000, int32=lambda kind, field, start: 1 if start else None
    )
    starts = [THREAD, BLOCK]

    def look_up(address: int) -> Any:
        return next(((at, start) for at, start in enumerate(starts) if start <= address < start + SIZE), None)

    blocks: Any = SimpleNamespace(lookup=look_up, size=lambda index: SIZE)
    assert list(list_event_blocks(tables, blocks)) == expected
