"""Write blocks as CSV or as an SQLite database: one row per block, in bounded memory."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Optional, TypeVar

from findleaks.audit.block_batches import Batch, BlockNames
from findleaks.errors import FindleaksError
from findleaks.escaping import visible
from findleaks.report.files import replacing

COLUMNS = ("address", "size", "state", "kind", "allocator", "arena", "site", "type", "hint", "type_from", "type_sure")
"""The keys in the JSON of `blocks`."""
_SIGN, _WORD = 1 << 63, 1 << 64
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile('[,"\r\n]')

Names = Mapping[int, BlockNames]
Cell = TypeVar("Cell")


class Texts(dict[str, Cell]):
    """Cells of texts. Cells are cached because many texts are equal."""

    MOST = 1 << 16  # most texts remembered between batches

    def __init__(self, cell_of: Callable[[str], Cell]) -> None:
        super().__init__()
        self._cell_of = cell_of

    def __missing__(self, text: str) -> Cell:
        cell = self[text] = self._cell_of(text)
        return cell

    def of(self, column: Iterable[str]) -> Iterator[Cell]:
        """Yield the cells of a column."""
        if len(self) > self.MOST:
            self.clear()
        return map(self.__getitem__, column)


def visible_or_none(text: str) -> Optional[str]:
    """Return text from the core, escaped; None if it is empty."""
    return visible(text) or None


def write_csv(path: str, batches: Iterable[Batch], names: Names) -> None:
    """Write blocks as CSV with a header line (RFC 4180).
    Addresses are as in JSON ("0x55d0…"); unknown values are empty. A text that a spreadsheet would
    evaluate as a formula gets the prefix "'"."""
    with replacing(path) as part, open(part, "w", encoding="utf-8", newline="") as out:
        out.write(",".join(COLUMNS) + "\r\n")
        for lines in _csv_lines(batches, names):
            out.write("".join(lines))


def _csv_lines(batches: Iterable[Batch], names: Names) -> Iterator[Iterable[str]]:
    """Yield the lines of each batch. The cells before and after the site are built once for all
    rows with equal names."""
    heads: dict[int, str] = {}
    types: dict[int, str] = {}
    ends: dict[int, str] = {}
    cells = Texts(_csv_cell)
    for batch in batches:
        for number in set(batch.names) - heads.keys():
            *before, type_name, source, truth = map(_csv_cell, names[number])
            heads[number], types[number], ends[number] = ",".join(before), type_name, f"{source},{truth}"
        columns = batch.addresses, batch.sizes, map(heads.__getitem__, batch.names)
        sites = map(_csv_site, batch.sites) if batch.sites else repeat("")
        hints = cells.of(batch.hints) if batch.hints else repeat("")
        known = map(types.__getitem__, batch.names), hints, map(ends.__getitem__, batch.names)
        yield map("%#x,%d,%s,%s,%s,%s,%s\r\n".__mod__, zip(*columns, sites, *known))


def _csv_site(number: int) -> str:
    return str(number) if number else ""


def _csv_cell(text: str) -> str:
    """Add a prefix to text that a spreadsheet would evaluate as a formula, because the text comes
    from the core."""
    text = "'" * text.startswith(_FORMULA) + visible(text)
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE blocks (
  address INTEGER PRIMARY KEY, size INTEGER NOT NULL, state TEXT NOT NULL, kind TEXT, allocator TEXT, arena TEXT,
  site INTEGER, type TEXT, hint TEXT, type_from TEXT, type_sure INTEGER
);
CREATE TABLE sites (
  site INTEGER, frame INTEGER, address INTEGER, function TEXT, offset INTEGER, module TEXT, file TEXT, line INTEGER,
  PRIMARY KEY (site, frame)
) WITHOUT ROWID;
CREATE VIEW totals AS
  SELECT kind, state, allocator, type, size, count(*) AS blocks, sum(size) AS bytes FROM blocks GROUP BY 1, 2, 3, 4, 5 ORDER BY bytes DESC;
CREATE TEMP TABLE names (number INTEGER PRIMARY KEY, state TEXT, kind TEXT, allocator TEXT, arena TEXT, type TEXT,
  type_from TEXT, type_sure INTEGER);
"""
_INSERT = """
INSERT INTO blocks SELECT column1, column2, state, kind, allocator, arena, column4, type, column5, type_from, type_sure
FROM (VALUES {}) CROSS JOIN names ON number = column3
"""
_AT_ONCE = 50
"""Rows inserted by one statement. Seven columns of each row come from a temporary table. Both
together reduce the time to a third, compared with binding all columns of each row."""


def write_sqlite(
    path: str, batches: Iterable[Batch], names: Names, about: Mapping[str, str], sites: Iterable[tuple[object, ...]] = ()
) -> None:
    """Write the table `blocks`, with addresses as signed integers (those from 2^63 on are
    negative), and the tables `about` and `sites` (frames of stacks, innermost first). `sites` is
    read after `batches`."""
    with replacing(path) as part, contextlib.closing(sqlite3.connect(part, isolation_level=None)) as base:
        try:
            # The file is new, and no other process uses it
            base.execute("PRAGMA journal_mode = OFF")
            base.execute("PRAGMA synchronous = OFF")
            base.executescript(_TABLES)
            base.execute("BEGIN")
            base.executemany("INSERT INTO about VALUES (?, ?)", (tuple(map(_convert_value, item)) for item in about.items()))
            known: dict[int, int] = {}
            texts = Texts(visible_or_none)
            for batch in batches:
                new = [number for number in set(batch.names) if number not in known]
                known.update(zip(new, range(len(known), len(known) + len(new))))
                rows = ((known[number], *_columns(names[number])) for number in new)
                base.executemany("INSERT INTO names VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                _insert(base, batch, known, texts)
            base.executemany("INSERT INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (tuple(map(_convert_value, row)) for row in sites))
            base.execute("COMMIT")
        except sqlite3.Error as error:
            raise FindleaksError(f"{path}: cannot be written: {error}") from None


def _insert(base: sqlite3.Connection, batch: Batch, known: Mapping[int, int], texts: Texts[Optional[str]]) -> None:
    sites = (number or None for number in batch.sites) if batch.sites else repeat(None)
    hints = texts.of(batch.hints) if batch.hints else repeat(None)
    rows = zip(_signed_addresses(batch.addresses), _clip_sizes(batch.sizes), map(known.__getitem__, batch.names), sites, hints)
    most = len(batch.addresses) // _AT_ONCE
    values = chain.from_iterable(islice(rows, most * _AT_ONCE))
    base.executemany(_INSERT.format(", ".join(["(?, ?, ?, ?, ?)"] * _AT_ONCE)), zip(*[values] * (5 * _AT_ONCE)))
    base.executemany(_INSERT.format("(?, ?, ?, ?, ?)"), rows)


def _columns(names: BlockNames) -> Iterator[object]:
    """Return the names as the file stores them. State, allocator and arena are never NULL."""
    for column, name in zip(names._fields[:-1], names):
        yield visible(name) or (None if column in ("kind", "type", "type_from") else "")
    yield int(names.type_sure == "true") if names.type_sure else None


def _signed_addresses(addresses: Sequence[int]) -> Iterable[int]:
    return addresses if max(addresses) < _SIGN else [one - _WORD if one >= _SIGN else one for one in addresses]


def _clip_sizes(sizes: Sequence[int]) -> Iterable[int]:
    return sizes if max(sizes) < _SIGN else [min(one, _SIGN - 1) for one in sizes]


def _convert_value(value: object) -> object:
    """Convert an address to SQLite's signed integer, and escape text from the core."""
    if isinstance(value, str):
        return visible(value)
    return value - _WORD if isinstance(value, int) and value >= _SIGN else value
