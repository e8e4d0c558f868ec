"""Columns of some thousand blocks at a time, as exports take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

OWN = 1 << 63
"""The least number of names that are not the engine's."""


class BlockNames(NamedTuple):
    """What a block has of names; "" for what is unknown or does not apply. Text of the target is not
    escaped."""

    state: str
    kind: str
    allocator: str
    arena: str
    type: str


class NameTable(dict[int, BlockNames]):
    """Names by number. Those of the engine's numbers are unpacked when they are first asked for."""

    def __init__(self, unpack: Callable[[int], BlockNames]) -> None:
        super().__init__()
        self._unpack = unpack
        self._numbers: dict[BlockNames, int] = {}

    def __missing__(self, number: int) -> BlockNames:
        names = self[number] = self._unpack(number)
        return names

    def add(self, names: BlockNames) -> int:
        """The number of names that the engine has no number for."""
        number = self._numbers.setdefault(names, OWN + len(self._numbers))
        self[number] = names
        return number

    def clear(self) -> None:
        super().clear()
        self._numbers.clear()


class Batch(NamedTuple):
    """Columns of equal length, but for `hints` and `sites`, which are empty if no block has any.
    They are valid until the next batch."""

    indices: Sequence[int]
    addresses: Sequence[int]
    sizes: Sequence[int]
    """Usable bytes."""
    names: Sequence[int]
    """Numbers in a NameTable."""
    hints: Sequence[str]
    """Readable text at the beginning (block_types/text.py), escaped; "" for none."""
    sites: Sequence[int]
    """Numbers of allocation sites; 0: not recorded."""
