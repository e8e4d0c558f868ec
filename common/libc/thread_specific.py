"""Thread-specific data (pthread_getspecific) of glibc.

For the first keys, the data of a thread are {sequence, value} pairs (specific_1stblock). Pointers
to arrays follow (specific); each array has the pairs of the same number of further keys. musl is
not supported: it stores a pointer to plain values."""

from __future__ import annotations

KEYS = 0x310
"""Offset of the data from the thread pointer on x86-64, in struct pthread (glibc 2.4 to 2.43,
nptl/descr.h)."""

KEYS_OF_BLOCK = 32


def place_of_key(key: int) -> int:
    """Return the offset, from the thread pointer, of a key's value. The key must be one of the
    first keys."""
    return KEYS + 16 * key + 8
