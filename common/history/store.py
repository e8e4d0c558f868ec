"""Store each snapshot as an SQLite database, which any SQLite program can read.

Tables, of `PRAGMA user_version` 1 (`PRAGMA application_id` is 0x666c7331, "fls1"):

    snapshot    one row: time (seconds since 1970), uptime (seconds since the machine's start), boot
                (id of that start), program, build_id, pid, started (in clock ticks since the
                machine's start), findleaks (the version that wrote it), image (a digest that
                differs for each process: program, stack and random bytes as the kernel placed them)
    allocators  name: "glibc 2.36"
    figures     section, within, name, count, bytes, note: the figures of the commands. `within` is
                the root, allocator or runtime that contains the figure. A part has a higher rowid
                than the figure that contains it
    answers     command, json: each command's whole result, as printed with --json
    warnings    text
    sampling    one row: level, rows (of `sample`); none if blocks were not stored
    sample      address, size (usable bytes), level: blocks in use, those of the highest levels
                first. If the level in `sampling` is 0, the table contains all blocks; otherwise the
                blocks whose level is not lower. A block's level depends on its address and size
                (findleaks/engine/sampling.py): of the blocks below 4 KiB, one in 2^level is in the
                sample. Addresses from 2^63 on are stored as negative numbers

A snapshot is written under another name in the same directory. It is renamed when it is complete
and on disk, so readers never find an incomplete snapshot.

A file is hostile input. It is read without SQLite's recovery, and nothing in it is executed. Its
tables must be exactly those above. Views are rejected, because their rows may never end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Optional

from findleaks.errors import TargetError
from findleaks.history import stored_blocks as blocks
from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Identity, Snapshot

APPLICATION, VERSION = 0x666C7331, 1
MAGIC = b"SQLite format 3\0"
MAX_BYTES = 256 << 20
"""Maximum size in bytes of a snapshot's file. A larger file is not a snapshot."""
STEP = 10_000
"""Instructions of SQLite's virtual machine between two calls of its progress handler."""
MAX_COUNT = 1 << 62
"""Limit of each count and each number of bytes in the file. Sums may be larger."""

_TABLES = """
CREATE TABLE snapshot (time REAL, uptime REAL, boot TEXT NOT NULL, program TEXT NOT NULL, build_id TEXT NOT NULL, pid INTEGER,
                       started INTEGER, findleaks TEXT NOT NULL, image TEXT NOT NULL);
CREATE TABLE allocators (name TEXT NOT NULL);
CREATE TABLE figures (section TEXT NOT NULL, within TEXT NOT NULL, name TEXT NOT NULL, count INTEGER, bytes INTEGER, note TEXT NOT NULL);
CREATE TABLE answers (command TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE warnings (text TEXT NOT NULL);
CREATE TABLE sampling (level INTEGER NOT NULL, rows INTEGER NOT NULL);
CREATE TABLE sample (address INTEGER NOT NULL, size INTEGER NOT NULL, level INTEGER NOT NULL);
"""


_UNSOUND = f"""
SELECT count(*) FROM figures
WHERE typeof(section) <> 'text' OR typeof(within) <> 'text' OR typeof(name) <> 'text' OR typeof(note) <> 'text'
   OR typeof(count) NOT IN ('integer', 'null') OR typeof(bytes) NOT IN ('integer', 'null')
   OR max(abs(ifnull(count, 0)), abs(ifnull(bytes, 0))) > {MAX_COUNT}
"""

_SCHEMA = {re.split(r"\W+", sql)[2]: sql for sql in (part.strip() for part in _TABLES.split(";")) if sql}
"""For each table, the SQL that sqlite_master stores for it."""


def save(snapshot: Snapshot, path: Path, version: str) -> None:
    """Write a snapshot. When this function returns, the file at `path` is complete. Raises
    TargetError if it cannot be written; an earlier file is then unchanged."""
    if os.path.exists(path) and not os.path.isfile(path):
        # Renaming would replace the path, even if it is a device or a pipe and root calls this.
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
        base.execute("PRAGMA journal_mode = OFF")  # the file is deleted if writing fails
        base.execute(f"PRAGMA application_id = {APPLICATION}")
        base.execute(f"PRAGMA user_version = {VERSION}")
        base.executescript(_TABLES)
        program = _encode(one.program), one.build_id, _limit_count(one.pid), _limit_count(one.started)
        row = clock.time, clock.uptime, clock.boot, *program, version, one.image
        base.execute(f"INSERT INTO snapshot VALUES (?, ?, ?, {_TEXT}, ?, ?, ?, ?, ?)", row)
        base.executemany(f"INSERT INTO allocators VALUES ({_TEXT})", [(_encode(name),) for name in one.allocators])
        rows = (_row(one) for one in snapshot.figures)
        base.executemany(f"INSERT INTO figures VALUES ({_TEXT}, {_TEXT}, {_TEXT}, ?, ?, {_TEXT})", rows)
        base.executemany("INSERT INTO answers VALUES (?, ?)", [(word, json.dumps(body)) for word, body in snapshot.answers.items()])
        base.executemany(f"INSERT INTO warnings VALUES ({_TEXT})", [(_encode(text),) for text in snapshot.warnings])
        if snapshot.sample is not None:
            blocks.write(base, snapshot.sample)


def _row(one: Figure) -> tuple[object, ...]:
    names = map(_encode, (one.section, one.within, one.name))
    return (*names, _limit_count(one.number), _limit_count(one.bytes), _encode(one.note))


_TEXT = "CAST(? AS TEXT)"  # the argument is a result of `_encode`


def _encode(text: str) -> bytes:
    """Return a name as UTF-8 bytes. Bytes that came from the target are unchanged, because SQLite
    stores any bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate
        return text.encode("utf-8", "backslashreplace")


def _limit_count(number: Optional[int]) -> Optional[int]:
    """Return the number; None if it is too large. A damaged process may contain any number."""
    return number if number is None or abs(number) <= MAX_COUNT else None


def is_snapshot(path: str) -> bool:
    """Whether a file begins like an SQLite database. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load(path: str, sections: Optional[Collection[str]] = None, answers: bool = False) -> Snapshot:
    """Read a snapshot. `sections`: only figures of these sections. `answers`: whether to read the
    results of commands, too. Raises TargetError with the reason if the file is not a valid
    snapshot."""
    name = os.path.basename(path)
    steps: Iterator[bool] = iter(())
    try:
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            raise TargetError(f"{path}: not a snapshot: larger than {MAX_BYTES >> 20} MiB")
        with contextlib.closing(blocks.open_read_only(path)) as base:
            steps = _steps(size)
            base.set_progress_handler(lambda: next(steps, True), STEP)
            return _read(base, path, name, sections, answers)
    except OSError as error:
        raise TargetError(f"{path}: {(error.strerror or '').lower()}") from None
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted" and not next(steps, True):
            # The limit of steps was not reached. Ctrl-C arrived while SQLite called the handler,
            # and SQLite dropped it.
            raise KeyboardInterrupt from None
        raise TargetError(f"{path}: the snapshot is damaged: {error}") from None
    except (sqlite3.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TargetError(f"{path}: the snapshot is damaged: {error}") from None


def _read(base: sqlite3.Connection, path: str, name: str, sections: Optional[Collection[str]], answers: bool) -> Snapshot:
    (kind,), (version,) = base.execute("PRAGMA application_id").fetchone(), base.execute("PRAGMA user_version").fetchone()
    if kind != APPLICATION:
        raise TargetError(f"{path}: an SQLite database, but not a snapshot of findleaks")
    if version > VERSION:
        raise TargetError(f"{path}: written by a newer findleaks: format version {version}; this findleaks reads versions up to {VERSION}")
    made = {table: (kind, sql) for kind, table, sql in base.execute("SELECT type, name, sql FROM sqlite_master LIMIT 100")}
    for table, sql in _SCHEMA.items():
        if made.get(table) != ("table", sql):
            raise TargetError(f"{path}: the snapshot is damaged: its table `{table}` is " + ("another" if table in made else "missing"))
    head = base.execute("SELECT time, uptime, boot, program, build_id, pid, started, image FROM snapshot").fetchone()
    if head is None:
        raise TargetError(f"{path}: the snapshot is damaged: its table `snapshot` is empty")
    time, uptime, boot, program, build_id, pid, started, image = head
    allocators = tuple(str(row[0]) for row in base.execute("SELECT name FROM allocators LIMIT 64"))
    identity = Identity(str(program), str(build_id), _whole(pid), _whole(started), allocators, str(image))
    clock = Clock(_seconds(time), _seconds(uptime), str(boot))
    (wrong,) = base.execute(_UNSOUND).fetchone()
    if wrong:
        raise TargetError(f"{path}: the snapshot is damaged: a figure is not a number or is too large, or its name is not text")
    names = list(sections or ())
    among = f"WHERE section IN ({', '.join('?' * len(names))})" if names else ""
    rows = base.execute(f"SELECT section, name, count, bytes, within, note FROM figures {among} ORDER BY rowid", names)
    figures = list(map(Figure._make, rows))
    warnings = tuple(str(row[0]) for row in base.execute("SELECT text FROM warnings LIMIT 1000"))
    bodies = {str(word): json.loads(text) for word, text in base.execute("SELECT command, json FROM answers LIMIT 64")} if answers else {}
    return Snapshot(name, clock, identity, figures, bodies, warnings, blocks.sample(base, path))


def _steps(size: int) -> Iterator[bool]:
    """Return an iterator that yields False as often as SQLite may call the progress handler for a
    file of this size. Without this limit, pages that refer to one another in a cycle would keep
    SQLite busy forever."""
    return itertools.repeat(False, 100 + size // 1000)


def _whole(value: object) -> Optional[int]:
    if value is not None and (not isinstance(value, int) or abs(value) > MAX_COUNT):
        raise ValueError("a number was expected")
    return value


def _seconds(value: object) -> Optional[float]:
    """Return a time. Raises ValueError for a value that is not a plausible time."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and 0 <= value < 1 << 40):
        raise ValueError("a time was expected")
    return float(value)
