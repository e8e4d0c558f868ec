"""Columns of blocks: buffers that numpy, pandas, pyarrow and polars wrap without a copy."""

from __future__ import annotations

from array import array
from typing import Union

from findleaks.value_classes import NamedTuple

Numbers = Union["array[int]", memoryview]
"""A number for each block, such as a claim on its type ("I")."""

NO_GROUP = 0xFFFFFFFF
"""Stands for the number of a group if the block belongs to no group."""


class BlockColumns(NamedTuple):
    """Blocks with consecutive indices, by ascending address. The buffers are read-only, contiguous
    and of equal length. They stay valid after the directory of blocks is freed."""

    address: memoryview
    """Addresses ("Q")."""
    size: memoryview
    """Usable sizes in bytes ("Q")."""
    state: memoryview
    """Values of terms.State ("B")."""
