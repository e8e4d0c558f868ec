"""Test which requests may result in a block of some size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.types.sizes import MOST_UNREQUESTED, SizeClasses


@pytest.mark.parametrize(
    ("allocator", "size", "unrequested"),
    [
        ("glibc", 56, 31),
        ("glibc", 24, 23),
        ("jemalloc", 64, 15),
        ("jemalloc", 1 << 20, (1 << 18) - 1),
        ("jemalloc", 1 << 36, MOST_UNREQUESTED),
    ],
)
def test_unrequested_bytes(allocator: str, size: int, unrequested: int) -> None:
    """The answer to the engine's question has 32 bits, also for the largest blocks of allocators whose size classes are a quarter apart."""
    directory: Any = SimpleNamespace(
        allocators=[SimpleNamespace(name=allocator)], blocks=SimpleNamespace(by_size=lambda: [SimpleNamespace(size=size)])
    )
    assert SizeClasses(directory, 8).most_unrequested(size) == unrequested
