"""Thread-specific data (pthread_getspecific) of glibc.

The data of a thread are {sequence, value} pairs for the first keys (specific_1stblock), then
pointers to arrays, each for the same number of further keys (specific). musl points to plain
values, and is not supported."""

from __future__ import annotations

KEYS = 0x310
"""Offset of the data from the thread pointer on x86-64, in struct pthread (glibc 2.4 to 2.43,
nptl/descr.h)."""

KEYS_OF_BLOCK = 32


def place_of_key(key: int) -> int:
    """Return the offset from the thread pointer of the value of one of the first keys."""
    return KEYS + 16 * key + 8
