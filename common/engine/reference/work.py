"""Run work in steps."""

from __future__ import annotations

from collections.abc import Iterator


def run(work: Iterator[None], budget: int) -> bool:
    """Do `budget` steps (at least one). Return True when all are done."""
    for _ in range(max(1, budget)):
        if next(work, work) is work:
            return True
    return False
