"""The scheduler-loop quarantine of PartitionAlloc: entries of both kinds are read, and damaged ones are not."""

from __future__ import annotations

import struct

import image_partition
import pytest
from fake import FakeTarget

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc.quarantine import read_quarantine
from findleaks.allocators.partitionalloc.roots import Root, RootLayout
from findleaks.target.base import Range

ROOT, AFTER_ROOT, CACHE, VECTOR, SLOTS = 0x10000, 0x11000, 0x12000, 0x13000, 0x100000
SIZES = [(16 * number, 1) for number in range(1, 9)] + [(1 << 20, 256)]
EXTRAS = 16


def read(entries: list[tuple[int, int]], total: int) -> tuple[list[int], list[Problem]]:
    """Read a quarantine with the slots 0, 1, and so on, whose entries end with these numbers. A thread cache has the vector."""
    vector = b"".join(struct.pack("<QQ", SLOTS + 0x100 * slot, number) for slot, number in entries)
    branch = struct.pack("<QQQQQ", 7, VECTOR, VECTOR + len(vector), VECTOR + 4096, total)
    memory = {
        AFTER_ROOT: struct.pack("<QQQQ", 0, ROOT, total, len(entries)).ljust(2048, b"\0"),
        CACHE: branch.ljust(1024, b"\0"),
        VECTOR: vector.ljust(4096, b"\0"),
    }
    root = Root(ROOT, 0, RootLayout(image_partition.KINDS[0].bucket, 0, 0, 0, True), SIZES, [], [], 0, EXTRAS, True, Range(0, 0), {})
    problems: list[Problem] = []
    found = read_quarantine(Memory(FakeTarget(memory)), root, AFTER_ROOT, [CACHE], problems)
    return [(slot - SLOTS) // 0x100 for slot in found.slots], problems


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([0, 3, 3, 8], 16 + 64 + 64 + (1 << 20)),  # numbers of buckets
        ([16, 48, 48, 1000000], 16 + 48 + 48 + 1000000),  # usable bytes; the last slot is the only one of its span
    ],
)
def test_both_kinds_of_entries(numbers: list[int], total: int) -> None:
    assert read(list(enumerate(numbers)), total) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([0, 3], 16 + 64 + 8),
        ([0, 9], 16 + 64),  # there is no bucket 9
        ([16, 40], 16 + 40),  # no slot has 40 usable bytes
        ([0, 0], 0),
    ],
)
def test_damaged_entries(numbers: list[int], total: int) -> None:
    slots, problems = read(list(enumerate(numbers)), total)
    assert not slots and "has 2 slots, but only 0 are found" in problems[0].what
