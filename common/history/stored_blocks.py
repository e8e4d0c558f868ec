"""Read and write the blocks of a snapshot in its SQLite file. store.py documents the tables."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Optional

from findleaks.engine.sampling import MAX_LEVEL, level_of
from findleaks.errors import TargetError
from findleaks.history.sample import MOST, Block, BlockSample

_SIGN, _WORD = 1 << 63, 1 << 64


def open_read_only(path: str) -> sqlite3.Connection:
    """Open the database read-only. Raises sqlite3.Error if it is not a database."""
    base = sqlite3.connect(Path(path).absolute().as_uri() + "?mode=ro&immutable=1", uri=True)
    base.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    base.execute("PRAGMA trusted_schema = OFF")
    return base


def write(base: sqlite3.Connection, sample: BlockSample) -> None:
    """Fill the tables `sampling` and `sample`."""
    rows = [(_make_signed(address), min(size, _SIGN - 1), level_of(address, size)) for address, size in sample.blocks(sample.level)]
    rows.sort(key=lambda row: (-row[2], row[0]))
    base.execute("INSERT INTO sampling VALUES (?, ?)", (sample.level, len(rows)))
    base.executemany("INSERT INTO sample VALUES (?, ?, ?)", rows)


def _make_signed(word: int) -> int:
    """Return a word as a signed integer, because SQLite's integers are signed."""
    return word - _WORD if word >= _SIGN else word


def sample(base: sqlite3.Connection, path: str) -> Optional[BlockSample]:
    """Return the sample of a snapshot. Its blocks are read when they are needed. Raises ValueError
    if it is damaged, and sqlite3.Error if it cannot be read."""
    head = base.execute("SELECT level, rows FROM sampling").fetchone()
    if head is None:
        return None
    level, rows = (int(str(word)) for word in head)
    if not (0 <= level <= MAX_LEVEL and 0 <= rows <= MOST):
        raise ValueError("its sample of blocks is inconsistent")
    return BlockSample(level, rows, lambda least: _blocks(path, rows, least))


def _blocks(path: str, rows: int, least: int) -> set[Block]:
    """Return the blocks of the sample with at least this level. Raises TargetError if the file is
    missing or damaged."""
    try:
        with contextlib.closing(open_read_only(path)) as base:
            wanted = _rows_of(base, rows, least)
            found = base.execute("SELECT address, size FROM sample WHERE rowid <= ?", (wanted,)).fetchall()
    except sqlite3.Error as error:
        raise TargetError(f"{path}: the snapshot is damaged: {error}") from None
    if not all(type(address) is int and type(size) is int and size >= 0 for address, size in found):
        raise TargetError(f"{path}: the snapshot is damaged: its sample of blocks is inconsistent")
    return {(address % _WORD, size) for address, size in found} if any(address < 0 for address, _ in found) else set(found)


def _rows_of(base: sqlite3.Connection, rows: int, least: int) -> int:
    """Return the number of blocks with at least this level. They are the first rows."""
    low, high = 0, rows
    while low < high:
        middle = (low + high + 1) // 2
        row = base.execute("SELECT level >= ? FROM sample WHERE rowid = ?", (least, middle)).fetchone()
        low, high = (middle, high) if row and row[0] else (low, middle - 1)
    return low
