"""Find errors in what a command printed or wrote for a damaged core: text that controls a terminal, active markup, formulas, invalid
JSON."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

_LIVING = re.compile(rb"<script>alert|<img src=x|[\x00-\x08\x0b-\x1f\x7f]")
_STEP = re.compile(r".* \d+( \d+)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def wrong_text(words: Sequence[str], status: int, out: bytes, err: bytes) -> str:
    """Return what is wrong with the output of a command; "" for nothing."""
    for data in (out, err):
        for line in data.decode("utf-8", "surrogateescape").split("\n"):
            if not line.isprintable():
                return f"prints {line[:300]!r}"
    said = err.decode("utf-8", "replace").strip()
    if "out of memory" in said:
        return "out of memory"
    if status not in (0, 1, 2) or (said and status != 2) or not (said or out.strip() or status == 0):
        return f"exit status {status}, and says {said!r}"
    if said and (out.strip() or not said.startswith("findleaks") or len(said) > 2000):
        return f"says {said[:3000]!r} after {out[:200]!r}"
    if "--json" in words:
        for row in out.decode("ascii").splitlines():
            _parsed(row)
    return ""


def wrong_file(file: Path) -> str:
    """Return what is wrong with a file that a command wrote, by the suffix of its name; "" for nothing."""
    for end, check in _CHECKS.items():
        if file.name.endswith(end):
            problem = check(file.read_bytes() if check is not _database else bytes(file))
            return f"{end} has {problem}" if problem else ""
    return ""


def _page(data: bytes) -> str:
    found = _LIVING.search(data)
    return repr(data[max(0, found.start() - 80) : found.end() + 80]) if found else ""


def _json(data: bytes) -> str:
    _parsed(data.decode("ascii"))
    return ""


def _parsed(text: str) -> object:
    return json.loads(text, parse_constant=_refused)


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _rows(data: bytes) -> str:
    rows = list(csv.reader(data.decode("utf-8").splitlines(keepends=True), strict=True))
    if {len(row) for row in rows} != {len(rows[0])}:
        return "rows of different lengths"
    return _texts(cell for row in rows for cell in row) or next(
        (repr(cell) for row in rows for cell in row if cell.startswith(_FORMULA)), ""
    )


def _stacks(data: bytes) -> str:
    lines = data.decode("utf-8").splitlines()
    return _texts(lines) or next((repr(line) for line in lines if not _STEP.fullmatch(line)), "")


def _heap(data: bytes) -> str:
    return _texts(data.decode("utf-8").split("\n"))


def _profile(data: bytes) -> str:
    """Check a protocol buffer's table of strings (field 6 of Profile, github.com/google/pprof proto/profile.proto)."""
    data, at, texts = gzip.decompress(data), 0, []
    while at < len(data):
        key, at = _varint(data, at)
        number, at = _varint(data, at)
        if key & 7 == 2:
            if key >> 3 == 6:
                texts.append(data[at : at + number].decode("utf-8"))
            at += number
    return _texts(texts) if at == len(data) and texts[:1] == [""] else "a broken profile"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while data[at] & 0x80:
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return found | data[at] << shift, at + 1


def _database(path: bytes) -> str:
    with contextlib.closing(sqlite3.connect(path.decode())) as base:
        if base.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return "a broken database"
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = (cell for table in tables for row in base.execute(f"SELECT * FROM {table}") for cell in row)
        return _texts(cell for cell in cells if isinstance(cell, str))


def _texts(texts: Iterable[str]) -> str:
    """Return the first text that would control a terminal."""
    return next((repr(text[:300]) for text in texts if not text.isprintable()), "")


_CHECKS = {
    ".html": _page,
    ".svg": _page,
    ".json": _json,
    ".csv": _rows,
    ".folded": _stacks,
    ".heap": _heap,
    ".pb.gz": _profile,
    ".sqlite": _database,
}
