"""Test which requests may result in a block of some size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.types.sizes import MOST_UNREQUESTED, SizeClasses


@pytest.mark.parametrize(
    ("allocator", "word", "granule", "size", "unrequested"),
    [
        ("glibc", 8, 16, 56, 31),
        ("glibc", 8, 16, 24, 23),
        ("glibc", 8, 16, (1 << 20) - 16, 4096 + 15),
        ("glibc", 4, 16, 28, 15),  # i386: requests of 13 to 28 bytes
        ("glibc", 4, 16, (1 << 20) - 16, 4095),
        ("glibc", 4, 8, 28, 15),  # arm: 21 to 28, or 13 to 20 in a chunk that was not split
        ("glibc", 4, 8, (1 << 20) - 8, 4096 + 7),
        ("jemalloc", 8, 8, 64, 15),
        ("jemalloc", 8, 8, 1 << 20, (1 << 18) - 1),
        ("jemalloc", 8, 8, 1 << 36, MOST_UNREQUESTED),
    ],
)
def test_unrequested_bytes(allocator: str, word: int, granule: int, size: int, unrequested: int) -> None:
    """The answer to the engine's question has 32 bits, also for the largest blocks of allocators whose size classes are a quarter apart."""
    directory: Any = SimpleNamespace(
        allocators=[SimpleNamespace(name=allocator, granule=granule)], blocks=SimpleNamespace(by_size=lambda: [SimpleNamespace(size=size)])
    )
    assert SizeClasses(directory, word).most_unrequested(size) == unrequested
