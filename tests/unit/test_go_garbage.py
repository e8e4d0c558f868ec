"""Garbage of a Go heap is reported only if it is much more than in a healthy program, and if no memory is missing that may refer to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest

from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Count
from findleaks.runtimes.garbage import type_with_garbage
from findleaks.runtimes.go.memstats import MemStats
from findleaks.runtimes.go.span_table import ObjectSpan, ObjectSpans
from findleaks.runtimes.go.unused_memory import find_unused_memory
from findleaks.target.base import Range

START, SIZE = 0xC000000000, 64 << 20


def find_garbage(stats: Optional[MemStats], live: int = 10 << 20, garbage: int = 30 << 20, **target: Any) -> list[dict[str, object]]:
    """Return the facts of the findings about a heap with one span."""
    target = {"truncated": False, "unread": [], "threads": lambda: [1], "resident": lambda start, end: None, **target}
    spans = ObjectSpans.of([ObjectSpan(START, START + SIZE, SIZE, 1, 1, 0, 0, 0, 0)])
    blocks = SimpleNamespace(totals=lambda state: Totals(1, SIZE))
    objects = SimpleNamespace(target=SimpleNamespace(**target), spans=spans, blocks=blocks)
    types = [type_with_garbage("main.Item", Totals(1, live), Totals(2, garbage))]
    return [one.facts for one in find_unused_memory(cast(Any, objects), cast(Any, None), types, stats)]


def test_garbage_of_which_nothing_is_missing() -> None:
    (facts,) = find_garbage(MemStats({}, 100, 0))
    assert (facts["garbage_bytes"], facts["live_bytes"], facts["gogc"]) == (30 << 20, 10 << 20, 100)
    assert find_garbage(None) and find_garbage(None, unread=[Range(START + SIZE, START + SIZE + 4096)])


LACKING: dict[str, dict[str, Any]] = {
    "truncated": {"truncated": True},
    "threads": {"threads": tuple},
    "unread": {"unread": [Range(START + SIZE - 4096, START + SIZE + 4096)]},
}


@pytest.mark.parametrize("target", LACKING.values(), ids=LACKING)
def test_missing_memory_may_refer_to_what_looks_like_garbage(target: dict[str, Any]) -> None:
    assert not find_garbage(None, **target)


def test_stacks_count_in_the_goal_of_the_heap() -> None:
    assert not find_garbage(MemStats({"StackInuse": Count(20 << 20, "bytes")}, 100, 0))
    assert not find_garbage(None, live=16 << 20)
