"""Blocks as CSV and as an SQLite database: a row a block, however many there are."""

from __future__ import annotations

import contextlib
import csv
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from findleaks.errors import FindleaksError
from findleaks.escaping import visible
from findleaks.report.files import replacing

COLUMNS = ("address", "size", "state", "kind", "allocator", "arena", "site", "type", "hint")
"""Keys of the JSON of `blocks`."""
_SIGN, _WORD = 1 << 63, 1 << 64
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Row = Mapping[str, Any]


def write_csv(path: str, rows: Iterable[Row]) -> None:
    """With a line of names first (RFC 4180). Addresses are as in JSON ("0x55d0…"); what is not
    known is empty. Text that a spreadsheet would take for a formula has "'" in front."""
    with replacing(path) as part, open(part, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        writer.writerows([_inert(row[name]) for name in COLUMNS] for row in rows)


def _inert(value: object) -> object:
    """Text comes from the core, and spreadsheets run formulas of files that they open."""
    if not isinstance(value, str):
        return value
    return "'" * value.startswith(_FORMULA) + visible(value)


_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE blocks (
  address INTEGER PRIMARY KEY, size INTEGER NOT NULL, state TEXT NOT NULL, kind TEXT, allocator TEXT, arena TEXT,
  site INTEGER, type TEXT, hint TEXT
);
CREATE TABLE sites (
  site INTEGER, frame INTEGER, address INTEGER, function TEXT, offset INTEGER, module TEXT, file TEXT, line INTEGER,
  PRIMARY KEY (site, frame)
) WITHOUT ROWID;
CREATE VIEW totals AS
  SELECT kind, state, allocator, type, size, count(*) AS blocks, sum(size) AS bytes FROM blocks GROUP BY 1, 2, 3, 4, 5 ORDER BY bytes DESC;
"""


def write_sqlite(path: str, rows: Iterable[Row], about: Mapping[str, str], sites: Iterable[tuple[object, ...]] = ()) -> None:
    """The table `blocks`, with addresses as integers (SQLite's have a sign: those from 2^63 on are
    negative); `about` and `sites`: its tables of these names, the stacks' innermost frame first."""
    with replacing(path) as part, contextlib.closing(sqlite3.connect(part, isolation_level=None)) as base:
        try:
            base.execute("PRAGMA journal_mode = OFF")  # the file is new, and its name no one's yet
            base.execute("PRAGMA synchronous = OFF")
            base.executescript(_TABLES)
            base.execute("BEGIN")
            base.executemany("INSERT INTO about VALUES (?, ?)", (tuple(map(_stored, item)) for item in about.items()))
            base.executemany(f"INSERT INTO blocks VALUES ({', '.join('?' * len(COLUMNS))})", map(_values, rows))
            base.executemany("INSERT INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (tuple(map(_stored, row)) for row in sites))
            base.execute("COMMIT")
        except sqlite3.Error as error:
            raise FindleaksError(f"{path}: cannot be written: {error}") from None


def _values(row: Row) -> list[Any]:
    return [_stored(int(row["address"], 16)), min(row["size"], _SIGN - 1), *(_stored(row[name]) for name in COLUMNS[2:])]


def _stored(value: object) -> object:
    """An address as SQLite has it, or text of the core, escaped."""
    if isinstance(value, str):
        return visible(value)
    return value - _WORD if isinstance(value, int) and value >= _SIGN else value
