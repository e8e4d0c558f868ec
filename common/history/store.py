"""Snapshots as files: one snapshot each, an SQLite database that any SQLite reads.

Tables, of `PRAGMA user_version` 1 (`PRAGMA application_id` is 0x666c7331, "fls1"):

    snapshot    one row: time (seconds since 1970), uptime (seconds since the machine's start), boot
                (id of that start), program, build_id, pid, started (in clock ticks since the
                machine's start), findleaks (the version that wrote it)
    allocators  name: "glibc 2.36"
    figures     section, within, name, count, bytes, note: what the commands say, one by one;
                `within` is the root, allocator or runtime that the figure is a part of. A part
                follows, by its rowid, what it is a part of
    answers     command, json: each command's whole answer, as its --json prints it
    warnings    text

A snapshot is written under another name in the same folder, and renamed when it is whole and on
the disk. So no reader ever finds a half of one.

A file is hostile input. It is read without SQLite's own recovery and without anything that it could
have run: its tables must be those above to the letter, no views, whose rows may never end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import tempfile
from pathlib import Path

from findleaks.errors import TargetError
from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Identity, Snapshot

APPLICATION, VERSION = 0x666C7331, 1
MAGIC = b"SQLite format 3\0"
MAX_BYTES = 256 << 20
"""Bytes of a snapshot's file, at most; a larger one is no summary."""
MIN_ROW = 9
"""Bytes of a figure's row at least: two lengths, and a header of seven (sqlite.org,
fileformat2.html, 1.6 and 2.1)."""
MAX_COUNT = 1 << 62
"""Of a count or of bytes; sums of figures are larger, which Python does not mind."""

_TABLES = """
CREATE TABLE snapshot (time REAL, uptime REAL, boot TEXT NOT NULL, program TEXT NOT NULL, build_id TEXT NOT NULL, pid INTEGER,
                       started INTEGER, findleaks TEXT NOT NULL);
CREATE TABLE allocators (name TEXT NOT NULL);
CREATE TABLE figures (section TEXT NOT NULL, within TEXT NOT NULL, name TEXT NOT NULL, count INTEGER, bytes INTEGER, note TEXT NOT NULL);
CREATE TABLE answers (command TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE warnings (text TEXT NOT NULL);
"""

_SCHEMA = {re.split(r"\W+", sql)[2]: sql for sql in (part.strip() for part in _TABLES.split(";")) if sql}
"""Each table's SQL as sqlite_master has it, by name."""


def save(snapshot: Snapshot, path: Path, version: str) -> None:
    """Write a snapshot; `path` exists when this returns, whole. TargetError where it cannot be
    written; what was there before is left as it was then."""
    if os.path.exists(path) and not os.path.isfile(path):
        # It would be replaced by a file: a device or a pipe, too, where root does this.
        raise TargetError(f"{path}: the snapshot cannot be written: not a regular file")
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error.strerror) from None
    try:
        _fill(snapshot, part, version)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, sqlite3.Error) as error:
        raise _unwritable(path, error.strerror if isinstance(error, OSError) else str(error)) from None
    finally:
        for left in (part, f"{part}-journal"):
            with contextlib.suppress(OSError):
                os.unlink(left)


def _unwritable(path: Path, why: object) -> TargetError:
    return TargetError(f"{path}: the snapshot cannot be written: {str(why).lower()}")


def _fill(snapshot: Snapshot, part: str, version: str) -> None:
    clock, one = snapshot.clock, snapshot.identity
    with contextlib.closing(sqlite3.connect(part)) as base, base:
        base.execute("PRAGMA journal_mode = OFF")  # the file is dropped if this fails
        base.execute(f"PRAGMA application_id = {APPLICATION}")
        base.execute(f"PRAGMA user_version = {VERSION}")
        base.executescript(_TABLES)
        row = clock.time, clock.uptime, clock.boot, one.program, one.build_id, one.pid, one.started, version
        base.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        base.executemany("INSERT INTO allocators VALUES (?)", [(name,) for name in one.allocators])
        rows = [(figure.section, figure.within, figure.name, figure.number, figure.bytes, figure.note) for figure in snapshot.figures]
        base.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?)", rows)
        base.executemany("INSERT INTO answers VALUES (?, ?)", [(word, json.dumps(body)) for word, body in snapshot.answers.items()])
        base.executemany("INSERT INTO warnings VALUES (?)", [(text,) for text in snapshot.warnings])


def is_snapshot(path: str) -> bool:
    """Whether a file begins as an SQLite database does. OSError where it cannot be read."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load(path: str, answers: bool = False) -> Snapshot:
    """Read a snapshot; its `answers` only if asked for. TargetError says what is wrong with it."""
    name = os.path.basename(path)
    try:
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            raise TargetError(f"{path}: no snapshot: larger than {MAX_BYTES >> 20} MiB")
        uri = Path(path).absolute().as_uri() + "?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
            base.execute("PRAGMA trusted_schema = OFF")
            return _read(base, path, name, answers, size)
    except OSError as error:
        raise TargetError(f"{path}: {(error.strerror or '').lower()}") from None
    except (sqlite3.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TargetError(f"{path}: the snapshot is damaged: {error}") from None


def _read(base: sqlite3.Connection, path: str, name: str, answers: bool, size: int) -> Snapshot:
    (kind,), (version,) = base.execute("PRAGMA application_id").fetchone(), base.execute("PRAGMA user_version").fetchone()
    if kind != APPLICATION:
        raise TargetError(f"{path}: an SQLite database, but no snapshot of findleaks")
    if version > VERSION:
        raise TargetError(f"{path}: written by a newer findleaks: version {version} of the format, where this one reads up to {VERSION}")
    made = {table: (kind, sql) for kind, table, sql in base.execute("SELECT type, name, sql FROM sqlite_master LIMIT 100")}
    for table, sql in _SCHEMA.items():
        if made.get(table) != ("table", sql):
            raise TargetError(f"{path}: the snapshot is damaged: its table `{table}` is " + ("another" if table in made else "missing"))
    head = base.execute("SELECT time, uptime, boot, program, build_id, pid, started FROM snapshot").fetchone()
    if head is None:
        raise TargetError(f"{path}: the snapshot is damaged: its table `snapshot` is empty")
    time, uptime, boot, program, build_id, pid, started = head
    allocators = tuple(str(row[0]) for row in base.execute("SELECT name FROM allocators LIMIT 64"))
    identity = Identity(str(program), str(build_id), _whole(pid), _whole(started), allocators)
    clock = Clock(_seconds(time), _seconds(uptime), str(boot))
    rows = base.execute("SELECT section, name, count, bytes, within, note FROM figures ORDER BY rowid")
    figures = []
    for row in rows:
        figure = Figure(*row)
        if not _sound(figure):
            raise TargetError(f"{path}: the snapshot is damaged: a figure is no number or too large, or its name no text")
        size -= MIN_ROW + len(figure.name) + len(figure.within) + len(figure.note)
        if size < 0:  # pages that refer to one another in a circle, or again and again
            raise TargetError(f"{path}: the snapshot is damaged: its figures are more than the file can hold")
        figures.append(figure)
    warnings = tuple(str(row[0]) for row in base.execute("SELECT text FROM warnings LIMIT 1000"))
    bodies = {str(word): json.loads(text) for word, text in base.execute("SELECT command, json FROM answers LIMIT 64")} if answers else {}
    return Snapshot(name, clock, identity, figures, bodies, warnings)


def _whole(value: object) -> int | None:
    if value is not None and (type(value) is not int or abs(value) > MAX_COUNT):
        raise ValueError("a number was expected")
    return value


def _seconds(value: object) -> float | None:
    """A time; ValueError for one that no clock shows."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and 0 <= value < 1 << 40):
        raise ValueError("a time was expected")
    return float(value)


def _sound(figure: Figure) -> bool:
    section, name, count, size, within, note = figure
    return (
        type(section) is type(name) is type(within) is type(note) is str
        and (count is None or (type(count) is int and abs(count) <= MAX_COUNT))
        and (size is None or (type(size) is int and abs(size) <= MAX_COUNT))
    )
