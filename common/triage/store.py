"""Store the rows of triage as an SQLite database, which --resume and --baseline read. Any SQLite
program can read it.

Tables, of `PRAGMA user_version` 1 (`PRAGMA application_id` is 0x666c7431, "flt1"):

    triage      one row: findleaks (the version that began it), began (seconds since 1970)
    cores       one row a core: core (its file; bytes that are not UTF-8 are \\xNN), size (bytes of
                the file), changed (when it was written to, nanoseconds since 1970), status (ok,
                partial, failed), program, build_id, signal, frame (the function in which it
                ended), time (seconds since 1970), lost_blocks, lost_bytes, seconds (of analysis),
                error; NULL if a value is not known
    leaks       the leaks of each core: core, own (the signature in this core alone), signature
                (that of the group, after all cores were compared), what, hint (text in one of the
                blocks), leaks (leak heads), blocks, bytes (both include indirect blocks), example
                (an address, "0x…"). Used for comparison: label, size (0: it varies), ring (1: in
                cycles), words (a JSON array)
    findings    the findings of `verdict`: core, rank (0 for a core's first), kind, bytes, title
    warnings    core, text

The groups of all cores are

    SELECT signature, min(what), count(DISTINCT core), sum(blocks), sum(bytes), min(time), max(time)
    FROM leaks JOIN cores USING (core) GROUP BY signature ORDER BY 3 DESC, 5 DESC;

Each core's rows are written in one transaction when the core is done. So if triage is interrupted,
even by SIGKILL, the file contains a core completely or not at all.

A file is hostile input. Its tables must be exactly those above. Views are rejected, as their rows
may never end.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

from findleaks.errors import FindleaksError, TargetError
from findleaks.escaping import visible
from findleaks.formatting import shorten
from findleaks.triage.examine import Source
from findleaks.triage.groups import LeakGroup
from findleaks.triage.row import FAILED, OK, PARTIAL, FindingLine, LeakSum, Row, utf8
from findleaks.triage.shapes import WORDS

APPLICATION, VERSION = 0x666C7431, 1
LARGEST = (1 << 63) - 1

_TABLES = """
CREATE TABLE triage (findleaks TEXT NOT NULL, began REAL NOT NULL);
CREATE TABLE cores (core TEXT PRIMARY KEY, size INTEGER NOT NULL, changed INTEGER NOT NULL, status TEXT NOT NULL, program TEXT,
                    build_id TEXT, signal TEXT, frame TEXT, time REAL, lost_blocks INTEGER, lost_bytes INTEGER, seconds REAL NOT NULL,
                    error TEXT);
CREATE TABLE leaks (core TEXT NOT NULL, own TEXT NOT NULL, signature TEXT NOT NULL, what TEXT NOT NULL, hint TEXT,
                    leaks INTEGER NOT NULL, blocks INTEGER NOT NULL, bytes INTEGER NOT NULL, example TEXT NOT NULL,
                    label TEXT NOT NULL, size INTEGER NOT NULL, ring INTEGER NOT NULL, words TEXT NOT NULL, PRIMARY KEY (core, own));
CREATE TABLE findings (core TEXT NOT NULL, rank INTEGER NOT NULL, kind TEXT NOT NULL, bytes INTEGER NOT NULL, title TEXT NOT NULL,
                       PRIMARY KEY (core, rank));
CREATE TABLE warnings (core TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX leaks_by_own ON leaks (own);
CREATE INDEX leaks_by_signature ON leaks (signature);
CREATE INDEX warnings_by_core ON warnings (core);
"""
_SCHEMA = {re.split(r"\W+", sql)[2]: sql for sql in (part.strip() for part in _TABLES.split(";")) if sql}
"""For each table and index, the SQL that sqlite_master stores for it."""
_DAMAGED = (sqlite3.Error, ValueError, TypeError, OverflowError)
"""Exceptions that reading a damaged file may raise. Text that is not UTF-8 raises ValueError."""
_CORE = "INSERT INTO cores VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LEAK = "INSERT INTO leaks VALUES (?, ?, ?, ?, nullif(?, ''), ?, ?, ?, ?, ?, ?, ?, ?)"
_LEAKS = """SELECT own, what, ifnull(hint, ''), leaks, blocks, bytes, example, label, size, ring, words FROM leaks WHERE core = ?"""


class Store:
    """A triage database that is open for writing. Raises FindleaksError if it cannot be written."""

    def __init__(self, base: sqlite3.Connection, path: str) -> None:
        self._base, self.path = base, path

    def list_done(self) -> dict[str, tuple[int, int]]:
        """Return the size and the time of change of each file that has a row, by name. Raises
        TargetError if the database is damaged."""
        try:
            return {core: (size, changed) for core, size, changed in self._base.execute("SELECT core, size, changed FROM cores")}
        except _DAMAGED as error:
            raise TargetError(f"{self.path}: the triage database is damaged: {error}") from None

    def add(self, source: Source, row: Row) -> None:
        """Add a core. If the core has a row from an earlier run, it is replaced."""
        core = utf8(row.core)
        try:
            with self._base as base:
                for table in ("cores", "leaks", "findings", "warnings"):
                    base.execute(f"DELETE FROM {table} WHERE core = ?", (core,))
                base.execute(_CORE, _columns(core, source, row))
                base.executemany(_LEAK, [_leak_columns(core, leak) for leak in row.signatures])
                found = [(core, rank, one.kind, _whole(one.bytes), visible(one.title)) for rank, one in enumerate(row.findings)]
                base.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?)", found)
                base.executemany("INSERT INTO warnings VALUES (?, ?)", [(core, visible(text)) for text in row.warnings])
        except sqlite3.Error as error:
            raise _unwritable(self.path, error) from None

    def name(self, groups: Iterable[LeakGroup]) -> None:
        """Set the signature and the description of the leaks of all cores to those of their
        group."""
        named = [(group.signature, visible(group.what), own) for group in groups for own in group.signatures]
        try:
            with self._base as base:
                base.executemany("UPDATE leaks SET signature = ?, what = ? WHERE own = ?", named)
        except sqlite3.Error as error:
            raise _unwritable(self.path, error) from None

    def close(self) -> None:
        self._base.close()


def create(path: str, version: str) -> Store:
    """Create a database. Raises FindleaksError if the file exists, or cannot be written."""
    if os.path.lexists(path):
        raise FindleaksError(f"{path} exists; resume it with --resume if it is a triage database, else use another name or remove it")
    try:
        return _create_tables(sqlite3.connect(path), path, version)
    except sqlite3.Error as error:
        raise _unwritable(path, error) from None


def resume(path: str, version: str) -> Store:
    """Open a database to continue it, or create one. Raises FindleaksError as `create` does, or if
    the file is not a triage database."""
    if not os.path.lexists(path):
        return create(path, version)
    if not os.path.isfile(path):
        raise FindleaksError(f"{path}: not a regular file; give the triage database to resume")
    try:
        base = sqlite3.connect(Path(path).absolute().as_uri() + "?mode=rw", uri=True)
        if not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return _create_tables(base, path, version)  # the earlier run did not write them
        _check(base, path)
        base.execute("PRAGMA synchronous = NORMAL")
        return Store(base, path)
    except _DAMAGED as error:
        raise _unwritable(path, error) from None


def _create_tables(base: sqlite3.Connection, path: str, version: str) -> Store:
    """Create all tables of a new database in one transaction."""
    numbers = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
    row = f"INSERT INTO triage VALUES ('{version}', {time.time():.6f})"
    base.executescript(f"PRAGMA synchronous = NORMAL; BEGIN; {numbers}; {_TABLES} {row}; COMMIT")
    return Store(base, path)


def rows(path: str) -> Iterator[Row]:
    """Yield the rows of a database, by core. Raises TargetError if it is not a triage database, or
    is damaged."""
    base = _open_database(path)
    try:
        _check(base, path)
        for core, size, _, *columns in base.execute("SELECT * FROM cores ORDER BY core"):
            yield _row(base, core, size, columns)
    except _DAMAGED as error:
        raise TargetError(f"{path}: the triage database is damaged: {error}") from None
    finally:
        base.close()


def _open_database(path: str) -> sqlite3.Connection:
    if not os.path.isfile(path):
        raise TargetError(f"{path}: " + ("not a regular file" if os.path.lexists(path) else "no such file"))
    try:
        base = sqlite3.connect(Path(path).absolute().as_uri() + "?mode=ro", uri=True)
        base.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error as error:
        raise TargetError(f"{path}: cannot be read: {error}") from None
    return base


def _check(base: sqlite3.Connection, path: str) -> None:
    try:
        (kind,), (version,) = base.execute("PRAGMA application_id").fetchone(), base.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise TargetError(f"{path}: not a triage database of findleaks: {error}") from None
    if kind != APPLICATION:
        raise TargetError(f"{path}: an SQLite database, but not a triage database of findleaks")
    if version > VERSION:
        raise TargetError(f"{path}: written by a newer findleaks: format version {version}; this findleaks reads versions up to {VERSION}")
    made = dict(base.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 100"))
    if made != _SCHEMA:
        raise TargetError(f"{path}: the triage database is damaged: its tables are not those of this format")
    # A cycle of pages would be read forever, and an index that lacks rows would fail when these
    # rows change.
    (found,) = base.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise TargetError(f"{path}: the triage database is damaged: {shorten(str(found), 200)}")


def _columns(core: str, source: Source, row: Row) -> tuple[object, ...]:
    texts = [visible(text) or None for text in (row.program, row.build_id, row.signal, row.frame)]
    lost = [None if count is None else _whole(count) for count in (row.lost_blocks, row.lost_bytes)]
    return core, source.size, source.changed, row.status, *texts, row.time, *lost, row.seconds, visible(row.error) or None


def _leak_columns(core: str, leak: LeakSum) -> tuple[object, ...]:
    texts = visible(leak.signature), visible(leak.signature), visible(leak.what), visible(leak.hint)
    compared = visible(leak.label), _whole(leak.size), int(leak.ring), visible(json.dumps(list(leak.words), ensure_ascii=False))
    return core, *texts, *map(_whole, leak[3:6]), hex(leak.example), *compared


def _leak(*columns: object) -> LeakSum:
    own, what, hint, leaks, blocks, held, example, label, size, ring, words = columns
    listed = json.loads(str(words))
    if not isinstance(listed, list) or len(listed) > WORDS:
        raise ValueError("words of a leak were expected")
    counts = _int(leaks), _int(blocks), _int(held), int(str(example), 16)
    return LeakSum(str(own), str(what), str(hint), *counts, str(label), _int(size), bool(ring), tuple(map(str, listed)))


def _row(base: sqlite3.Connection, core: str, size: int, columns: list[object]) -> Row:
    status, program, build_id, signal, frame, when, blocks, lost, seconds, error = columns
    known = next((one for one in (OK, PARTIAL, FAILED) if one == status), None)
    if known is None:
        raise ValueError(f"the status {str(status)[:40]!r} is not valid")
    leaks = [_leak(*columns) for columns in base.execute(_LEAKS, (core,))]
    lines = base.execute("SELECT kind, bytes, title FROM findings WHERE core = ? ORDER BY rank", (core,))
    return Row(
        str(core),
        known,
        program=str(program or ""),
        build_id=str(build_id or ""),
        signal=str(signal or ""),
        frame=str(frame or ""),
        time=None if when is None else _seconds(when),
        lost_blocks=None if blocks is None else _int(blocks),
        lost_bytes=None if lost is None else _int(lost),
        findings=tuple(FindingLine(str(kind), _int(held), str(title)) for kind, held, title in lines),
        signatures=tuple(sorted(leaks, key=lambda leak: (-leak.bytes, leak.signature))),
        warnings=tuple(str(text) for (text,) in base.execute("SELECT text FROM warnings WHERE core = ? ORDER BY rowid", (core,))),
        seconds=_seconds(seconds),
        error=str(error or ""),
        size=_int(size),
    )


def _int(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a count was expected")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("a time was expected")
    return float(value)


def _whole(count: int) -> int:
    return min(count, LARGEST)


def _unwritable(path: str, why: Optional[BaseException]) -> FindleaksError:
    return FindleaksError(f"{path}: the triage database cannot be written: {str(why).lower()}")
