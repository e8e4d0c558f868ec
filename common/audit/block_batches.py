"""Columns of data about blocks, for exports. A batch has some thousand blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

OWN = 1 << 63
"""The lowest number of a name that was added in Python. Lower numbers come from the engine."""


class BlockNames(NamedTuple):
    """Names of a block. A name that is unknown or does not apply is "". Text that was read from the
    target is not escaped. `type_sure` is "true" or "false"."""

    state: str
    kind: str
    allocator: str
    arena: str
    type: str
    type_from: str = ""
    type_sure: str = ""


def known_words(source: str, is_sure: bool) -> tuple[str, str]:
    """Return `type_from` and `type_sure` of a type that is known in this way."""
    return source, "true" if is_sure else "false"


class NameTable(dict[int, BlockNames]):
    """Maps numbers to names. A number that the engine assigned is decoded when it is first used."""

    def __init__(self, unpack: Callable[[int], BlockNames]) -> None:
        super().__init__()
        self._unpack = unpack
        self._numbers: dict[BlockNames, int] = {}

    def __missing__(self, number: int) -> BlockNames:
        names = self[number] = self._unpack(number)
        return names

    def add(self, names: BlockNames) -> int:
        """Add names for which the engine has no number. Returns the new number of these names."""
        number = self._numbers.setdefault(names, OWN + len(self._numbers))
        self[number] = names
        return number

    def clear(self) -> None:
        super().clear()
        self._numbers.clear()


class Batch(NamedTuple):
    """Columns of equal length. `hints` and `sites` are empty if no block of the batch has any."""

    indices: array[int]
    """Indices of the blocks in the heap ("I")."""
    addresses: array[int]
    """Addresses ("Q")."""
    sizes: array[int]
    """Usable bytes ("Q")."""
    names: array[int]
    """Numbers in a NameTable ("Q")."""
    hints: list[str]
    """Readable text at the beginning of the block (block_types/text.py), quoted and escaped; "" if
    none."""
    sites: list[int]
    """Numbers of allocation sites; 0: not recorded."""


class BatchCollector:
    """Joins small columns into batches of at least ROWS blocks.
    Each batch takes as much time as hundreds of rows, so small batches would be slow."""

    ROWS = 1 << 13

    def __init__(self) -> None:
        self._columns = _no_blocks()
        self._hints: list[str] = []
        self._sites: list[int] = []

    def add(self, columns: Iterable[memoryview | Iterable[int]], hints: Sequence[str] = (), sites: Sequence[int] = ()) -> None:
        """Add one value for each block to the columns: index, address, size and number of the
        names.
        Views of the engine's memory are copied."""
        before = len(self._columns[0])
        for column, values in zip(self._columns, columns):
            if isinstance(values, memoryview):
                column.frombytes(values.cast("B"))
            else:
                column.extend(values)
        if hints:
            self._hints += [""] * (before - len(self._hints))
            self._hints += hints
        if sites:
            self._sites += [0] * (before - len(self._sites))
            self._sites += sites

    def batches(self, last: bool = False) -> Iterator[Batch]:
        """Yield the collected batch if it has ROWS blocks. With `last`, a smaller batch is yielded,
        too."""
        rows = len(self._columns[0])
        if rows >= (1 if last else self.ROWS):
            hints = self._hints + [""] * (rows - len(self._hints)) if any(self._hints) else []
            sites = self._sites + [0] * (rows - len(self._sites)) if any(self._sites) else []
            made = Batch(*self._columns, hints, sites)
            self._columns, self._hints, self._sites = _no_blocks(), [], []
            yield made


def _no_blocks() -> tuple[array[int], array[int], array[int], array[int]]:
    return array("I"), array("Q"), array("Q"), array("Q")
