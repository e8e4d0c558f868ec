"""Snapshots as files: one moment each, an SQLite database that any SQLite reads.

Tables, of `PRAGMA user_version` 1 (`PRAGMA application_id` is 0x666c7331, "fls1"):

    moment   one row: name, time (seconds since 1970), program, build_id, pid, started, findleaks
             (the version that wrote it)
    allocators   name: "glibc 2.36"
    figures  section, within, name, count, bytes, note: what commands say, number by number;
             `within` is the root, allocator or runtime that the figure is a part of
    answers  command, json: each command's whole answer, as its --json prints it
    warnings text

A snapshot is written under another name in the same folder, and renamed when it is whole and on
the disk. So no reader ever finds a half of one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from pathlib import Path

from findleaks.errors import TargetError
from findleaks.history.figures import Figure
from findleaks.history.moment import Moment

APPLICATION, VERSION = 0x666C7331, 1
MAGIC = b"SQLite format 3\0"
MAX_BYTES = 1 << 30
"""Bytes of a snapshot's file, at most; a larger one is no summary."""

_TABLES = """
CREATE TABLE moment (name TEXT NOT NULL, time REAL, program TEXT NOT NULL, build_id TEXT NOT NULL, pid INTEGER, started INTEGER,
                     findleaks TEXT NOT NULL);
CREATE TABLE allocators (name TEXT NOT NULL);
CREATE TABLE figures (section TEXT NOT NULL, within TEXT NOT NULL, name TEXT NOT NULL, count INTEGER, bytes INTEGER, note TEXT NOT NULL,
                      PRIMARY KEY (section, within, name)) WITHOUT ROWID;
CREATE TABLE answers (command TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE warnings (text TEXT NOT NULL);
"""


def save(moment: Moment, path: Path, version: str) -> None:
    """Write a snapshot; `path` exists when this returns, whole. TargetError where it cannot be."""
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error.strerror) from None
    try:
        _fill(moment, part, version)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, sqlite3.Error) as error:
        raise _unwritable(path, error.strerror if isinstance(error, OSError) else str(error)) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _unwritable(path: Path, why: object) -> TargetError:
    return TargetError(f"{path}: the snapshot cannot be written: {str(why).lower()}")


def _fill(moment: Moment, part: str, version: str) -> None:
    with contextlib.closing(sqlite3.connect(part)) as base, base:
        base.execute(f"PRAGMA application_id = {APPLICATION}")
        base.execute(f"PRAGMA user_version = {VERSION}")
        base.executescript(_TABLES)
        row = moment.name, moment.time, moment.program, moment.build_id, moment.pid, moment.started, version
        base.execute("INSERT INTO moment VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        base.executemany("INSERT INTO allocators VALUES (?)", [(name,) for name in moment.allocators])
        rows = [(one.section, one.within, one.name, one.count, one.bytes, one.note) for one in moment.figures]
        base.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?)", rows)
        base.executemany("INSERT INTO answers VALUES (?, ?)", [(word, json.dumps(body)) for word, body in moment.answers.items()])
        base.executemany("INSERT INTO warnings VALUES (?)", [(text,) for text in moment.warnings])


def is_snapshot(path: str) -> bool:
    """Whether a file begins as an SQLite database does. OSError where it cannot be read."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load(path: str, answers: bool = False) -> Moment:
    """Read a snapshot; its `answers` only if asked for. TargetError says what is wrong with it."""
    name = os.path.basename(path)
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise TargetError(f"{name}: no snapshot: larger than {MAX_BYTES:,} bytes")
        uri = Path(path).absolute().as_uri() + "?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
            return _read(base, name, answers)
    except OSError as error:
        raise TargetError(f"{name}: {(error.strerror or '').lower()}") from None
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise TargetError(f"{name}: the snapshot is damaged: {error}") from None


def _read(base: sqlite3.Connection, name: str, answers: bool) -> Moment:
    (kind,), (version,) = base.execute("PRAGMA application_id").fetchone(), base.execute("PRAGMA user_version").fetchone()
    if kind != APPLICATION:
        raise TargetError(f"{name}: an SQLite database, but no snapshot of findleaks")
    if version > VERSION:
        raise TargetError(f"{name}: written by a newer findleaks (version {version} of the format; this one reads up to {VERSION})")
    head = base.execute("SELECT time, program, build_id, pid, started FROM moment").fetchone()
    if head is None:
        raise TargetError(f"{name}: the snapshot is damaged: it says of no moment")
    rows = base.execute("SELECT section, name, count, bytes, within, note FROM figures")
    figures = [Figure(*row) for row in rows]
    allocators = tuple(row[0] for row in base.execute("SELECT name FROM allocators"))
    warnings = tuple(row[0] for row in base.execute("SELECT text FROM warnings"))
    bodies = {word: json.loads(text) for word, text in base.execute("SELECT command, json FROM answers")} if answers else {}
    return Moment(name, *head, allocators, figures, bodies, warnings)
