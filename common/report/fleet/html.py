"""Render many cores as one HTML page, from page.html, page.css and page.js. It contains groups of
leaks, with the times and builds in which they occur, and each core. The size of the embedded data
is limited."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Optional

from findleaks.escaping import visible
from findleaks.formatting import printable
from findleaks.report.page import fill_template, script_json
from findleaks.triage.groups import LeakGroup
from findleaks.triage.row import Row

MAX_ROWS, MAX_GROUPS = 20_000, 2_000
"""Maximum number of cores and groups on the page. Those with the most leaked bytes are included."""
MAX_LEAKS, MAX_LINES = 100, 10  # most leaks of a core; most findings and warnings
_NAME, _LINE = 300, 600  # most characters of a name and of a sentence
_LAST_DATE = 8e12  # seconds since 1970


class _Numbered:
    """Distinct texts, each with a number. Most cores have the same texts."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str, limit: int = _NAME) -> int:
        return self._numbers.setdefault(printable(text, limit), len(self._numbers))

    def texts(self) -> list[str]:
        return list(self._numbers)


def render_html(rows: Sequence[Row], groups: Sequence[LeakGroup], headline: str, notes: Sequence[str] = (), command: str = "") -> str:
    """Render the page. `groups`: the groups of the leaks in `rows`. `command`: prefix of suggested
    commands."""
    text = _Numbered()
    shown = groups[:MAX_GROUPS]
    number = {group.signature: at for at, group in enumerate(shown)}
    kept = sorted(rows, key=lambda row: (-(row.lost_bytes or 0), row.core))[:MAX_ROWS]
    title = f"{len(rows):,} core{'' if len(rows) == 1 else 's'}"
    meta = {
        "title": title,
        "headline": printable(headline, _LINE),
        "notes": [printable(note, _LINE) for note in notes[:50]],
        "command": command or "findleaks",
        "left_out": [len(rows) - len(kept), len(groups) - len(shown)],
        "compared": any(group.new is not None for group in groups),
        "groups": [_group(group, text) for group in shown],
        "rows": [_row(row, number, text) for row in kept],
        "texts": [],
    }
    meta["texts"] = text.texts()
    made = {"TITLE": html.escape(visible(f"Cores: {title}")), "META": script_json(meta)}
    return fill_template(os.path.dirname(os.path.abspath(__file__)), made)


def _group(group: LeakGroup, text: _Numbered) -> list[object]:
    """Return the columns signature, program, what, hint, cores, leaks, blocks, bytes, first, last,
    new, example."""
    words = group.signature, text(group.program), text(group.what), text(group.hint)
    counts = group.cores, group.leaks, group.blocks, group.bytes
    return [*words, *counts, _date(group.first), _date(group.last), bool(group.new), text(group.example, 2000)]


def _row(row: Row, number: dict[str, int], text: _Numbered) -> list[object]:
    """Return the columns core, status, program, build-id, signal, frame, time, size, leaked bytes,
    seconds, error, findings (title, bytes), leaks (group, leaks, blocks, bytes, example),
    warnings."""
    words = [text(word) for word in (row.status, row.program, row.build_id, row.signal, row.frame)]
    findings = [[text(one.title, _LINE), one.bytes] for one in row.findings[:MAX_LINES]]
    leaks = [
        [number[one.signature], one.leaks, one.blocks, one.bytes, hex(one.example)] for one in row.signatures if one.signature in number
    ]
    warnings = [text(one, _LINE) for one in row.warnings[:MAX_LINES]]
    about = [_date(row.time), row.size, row.lost_bytes, round(row.seconds, 2), text(row.error, _LINE)]
    return [printable(row.core, 2000), *words, *about, findings, leaks[:MAX_LEAKS], warnings]


def _date(time: Optional[float]) -> Optional[float]:
    """Return a time that a script can show; None for other values. JSON has no infinity, and dates
    of scripts end in the year 275760."""
    return round(time, 3) if time is not None and abs(time) < _LAST_DATE else None
