"""Sentences about memory that findleaks does not read."""

from __future__ import annotations

from findleaks.audit.unread_memory import UnreadMemory, UnreadPart

MIB = 1 << 20
POOLS = UnreadPart("APR's pools", 40 * MIB, True)
FREED = "is in APR's pools, which are freed as a whole. Memory that a pool no longer needs is not reported as leaked."


def test_pools() -> None:
    unread = UnreadMemory([POOLS], 50 * MIB, True)
    assert unread.are_only_pools and unread.sentences() == f"80 % of the writable memory (40 MiB of 50 MiB) {FREED}"


def test_pools_and_shared_memory() -> None:
    """The sentence about pools does not hide that other memory is not read."""
    unread = UnreadMemory([POOLS, UnreadPart("shared memory", 30 * MIB)], 80 * MIB, True)
    assert unread.are_pools and not unread.are_only_pools
    wanted = f"50 % of the writable memory (40 MiB of 80 MiB) {FREED} findleaks also does not read 30 MiB in shared memory."
    assert unread.sentences() == wanted


def test_mostly_shared_memory() -> None:
    unread = UnreadMemory([UnreadPart("shared memory", 60 * MIB), POOLS], 120 * MIB, True)
    wanted = "findleaks does not read 83 % of the writable memory (100 MiB of 120 MiB): 60 MiB in shared memory, 40 MiB in APR's pools."
    assert unread.sentences() == f"{wanted} Leaks inside it are not reported."
