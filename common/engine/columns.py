"""Columns of blocks: buffers that numpy, pandas, pyarrow and polars wrap without a copy."""

from __future__ import annotations

from typing import NamedTuple

NO_GROUP = 0xFFFFFFFF
"""In place of a group's number: the block belongs to no group."""


class BlockColumns(NamedTuple):
    """Blocks of consecutive indices, by ascending address. The buffers are read-only, contiguous, of
    equal length, and stay valid however long the directory of blocks lives."""

    address: memoryview
    """Addresses ("Q")."""
    size: memoryview
    """Usable sizes in bytes ("Q")."""
    state: memoryview
    """Values of terms.State ("B")."""
