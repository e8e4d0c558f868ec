"""Read which pages of a target are resident: from a live process's pagemap, from holes in a core
that the kernel wrote, or from a side file.

Cores written by gcore do not show residency, and gcore itself makes pages resident. Therefore
`findleaks map --save-residency FILE` saves the residency before gcore runs. Residency is never
derived from contents: zeros do not mean that a page is absent.

The side file, "findleaks-residency 1", begins with a line of JSON. Zlib-compressed little-endian
64-bit words follow: three lists of ranges (known, resident, swapped; their lengths are in the
JSON). A range is two words: the number of pages skipped since the preceding range, and the number
of pages in the range."""

from __future__ import annotations

import os
import sys
import time
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

from findleaks.errors import FindleaksError
from findleaks.formatting import shorten
from findleaks.session import Session
from findleaks.target.base import Range, Target
from findleaks.target.notes import AT_BASE, AT_ENTRY, AT_EXECFN, AT_PHDR, AT_RANDOM, AT_SYSINFO_EHDR
from findleaks.target.processes import start_time
from findleaks.target.residency.presence import UNKNOWN, Presence
from findleaks.target.runs import Runs

SUFFIX = ".residency"  # CORE.residency is used without an option

_FORMAT, _VERSION = "findleaks-residency", 1
_MAX_HEAD_BYTES = 1 << 20  # maximum length in bytes of the line of JSON
_MAX_RANGES = 1 << 27  # maximum number of ranges in one list
_IDENTITY = (AT_PHDR, AT_BASE, AT_ENTRY, AT_RANDOM, AT_EXECFN, AT_SYSINFO_EHDR)


def read_residency(session: Session, file: str = "") -> Presence:
    """Return the residency of the session's target. It is also stored in the session for other
    parts of the command.
    Call this before you read memory, because reading a live process makes pages of its mapped files
    resident.

    `file`: a side file that the user named; raises FindleaksError if it cannot be used. Without
    `file`, the side file beside the core is used if it belongs to that process. Otherwise the
    target's own information is used."""
    found = _residency(session, file)
    if found:
        session.presence = found
    return found


def _residency(session: Session, file: str) -> Presence:
    target = session.target
    if file:
        return read_residency_file(file, target)
    warnings: list[str] = []
    beside = target.path + SUFFIX if target.path else ""
    if beside and os.path.isfile(beside):
        try:
            return read_residency_file(beside, target)
        except FindleaksError as error:
            warnings.append(str(error))
    found = target.presence(lambda part: session.report_progress("reading which pages are resident", part))
    if found is None:
        found = Presence(UNKNOWN, Runs.of(()), Runs.of(()), Runs.of(()))
    return found._replace(warnings=tuple(warnings))


def save_residency(session: Session, file: str) -> Presence:
    """Write the side file: for a live process before gcore runs, or for a core from the kernel
    before the core is compressed.
    Raises FindleaksError if residency is unknown or the file cannot be written."""
    import json  # few commands read or write a side file

    target = session.target
    found = read_residency(session)
    if not found:
        raise FindleaksError(
            f"{target.description}: residency is unknown, so there is nothing to save; use --pid, or a core written by the kernel"
        )
    head = {
        _FORMAT: _VERSION,
        "pid": target.pid,
        "start_time": start_time(target.pid) if target.live else None,
        "identity": identify_process(target),
        "page": target.arch.page,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rss": found.rss,
        "undecided": [list(part) for part in found.unsure],
        "known": len(found.known),
        "resident": len(found.resident),
        "swapped": len(found.swapped),
    }
    words: array[int] = array("Q")
    for runs in (found.known, found.resident, found.swapped):
        words += _pack_runs(runs, target.arch.page)
    body = zlib.compress(_little_endian(words).tobytes(), 6)
    made = f"{file}.new"
    try:
        with open(made, "wb") as out:
            out.write(json.dumps(head).encode() + b"\n" + body)
        os.replace(made, file)
    except OSError as error:
        raise FindleaksError(f"{file}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    return found


def _pack_runs(runs: Runs, page: int) -> array[int]:
    """Return two words for each range: the number of pages skipped before it, and the number of
    pages in it."""
    pages = [word // page for word in runs.words]
    return array("Q", (now - before for before, now in zip([0, *pages], pages)))


def _little_endian(words: array[int]) -> array[int]:
    """Convert words between this machine's byte order and little-endian."""
    if sys.byteorder != "little":
        words.byteswap()
    return words


def read_residency_file(file: str, target: Target) -> Presence:
    """Read a side file. Raises FindleaksError if the file is missing, damaged, or from another
    process."""
    try:
        with open(file, "rb") as source:
            line = source.readline(_MAX_HEAD_BYTES)
            body = source.read()
    except OSError as error:
        raise FindleaksError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    head = _parse_head(file, line)
    if head[_FORMAT] != _VERSION:
        raise FindleaksError(f"{file}: has residency format {shorten(str(head[_FORMAT]), 20)}, but this findleaks reads format {_VERSION}")
    _check_process(file, head, target)
    page, counts = head.get("page"), [head.get(name) for name in ("known", "resident", "swapped")]
    if page != target.arch.page or not all(isinstance(count, int) and 0 <= count <= _MAX_RANGES for count in counts):
        raise FindleaksError(f"{file}: damaged: its first line is invalid")
    known, resident, swapped = _unpack_lists(file, body, [int(count) for count in counts if count is not None], page)
    unsure = [
        Range(*part) for part in _as_list(head.get("undecided")) if len(_as_list(part)) == 2 and all(isinstance(at, int) for at in part)
    ]
    rss = head.get("rss")
    saved = shorten(str(head.get("saved") or ""), 40)
    return Presence("side file", known, resident, swapped, rss if isinstance(rss, int) else None, tuple(unsure), saved=saved)


def _parse_head(file: str, line: bytes) -> dict[str, Any]:
    import json  # few commands read or write a side file

    try:
        head = json.loads(line) if line.startswith(b"{") else None
    except ValueError:
        head = None
    if not isinstance(head, dict) or _FORMAT not in head:
        raise FindleaksError(f"{file}: not a residency file: write one with `findleaks map --save-residency FILE --pid PID`")
    return head


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_process(file: str, head: dict[str, Any], target: Target) -> None:
    """Raise FindleaksError if the side file is from another process: its pid or its load address
    differs."""
    pid = head.get("pid")
    if target.pid is not None and pid != target.pid:
        raise FindleaksError(f"{file}: belongs to process {shorten(str(pid), 20)}, but the target is process {target.pid}")
    own, said = identify_process(target), head.get("identity")
    started = target.live and head.get("start_time") not in (None, start_time(target.pid))
    if started or (own and said and own != said):
        raise FindleaksError(f"{file}: belongs to another process that had pid {shorten(str(pid), 20)}")


def _unpack_lists(file: str, body: bytes, counts: Sequence[int], page: int) -> list[Runs]:
    wanted = 16 * sum(counts)
    try:
        unpacked = zlib.decompressobj().decompress(body, wanted + 1)
    except zlib.error as error:
        raise FindleaksError(f"{file}: damaged: {error}") from None
    if len(unpacked) != wanted:
        raise FindleaksError(f"{file}: damaged or truncated: {len(unpacked):,} bytes of ranges instead of {wanted:,}")
    words = _little_endian(array("Q", unpacked))
    found, at = [], 0
    for count in counts:
        total, made = 0, array("Q")
        for number, pages in enumerate(words[at : at + 2 * count]):
            total += pages
            if (number and not pages) or total * page >= 1 << 64:
                raise FindleaksError(f"{file}: damaged: its ranges are not ascending")
            made.append(total * page)
        found.append(Runs(made))
        at += 2 * count
    return found


def identify_process(target: Target) -> str:
    """Return a digest that distinguishes processes with the same pid; "" if unknown.
    The digest covers the addresses of the program, the stack and the vdso, and the random bytes of
    the auxiliary vector."""
    import hashlib  # few commands need it, and its import takes 2 ms

    vector = target.auxv
    if not vector:
        return ""
    return hashlib.sha256(repr([vector.get(key, 0) for key in _IDENTITY]).encode()).hexdigest()[:32]
