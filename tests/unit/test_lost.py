"""Leaked blocks of one size with different contents: which blocks are distinguished, which ones suppressions remove,
and when a limit counts as kept."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks import commands
from findleaks.session import Session

HEAP, DATA = 0x10000, 0x400000


def run(made: Session, *line: str) -> tuple[int, str]:
    out = io.StringIO()
    return commands.execute(lambda: made, list(line), out), out.getvalue()


def run_json(made: Session, *line: str) -> Any:
    return json.loads(run(made, *line, "--json")[1])


@pytest.fixture
def mixed() -> Session:
    """Nine leaked blocks of one size: three have one text, six have another text. None has a type in its first word."""
    starts = [HEAP + 0x40 * i for i in range(9)]
    heap = b"".join((b"keep this one\0" if i < 3 else b"GET /lost\0").ljust(0x40, b"\0") for i in range(9))
    target = FakeTarget({HEAP: heap, DATA: bytes(0x100)}, threads=[thread(1, sp=0)])
    return session(target, [ListAllocator(HEAP, HEAP + 0x40 * 9, [Listed(a, 56) for a in starts])])


def test_a_suppression_removes_only_matching_blocks(mixed: Session, tmp_path: Any) -> None:
    """Also if blocks of the same size, the first ones of their group, have other contents."""
    rules = tmp_path / "rules"
    rules.write_text("string:keep*\n")
    found = run_json(mixed, "find", "--suppressions", str(rules))
    assert [(g["blocks"], g["hint"], g["examples"][0]) for g in found["groups"]] == [(6, '"GET /lost"', hex(HEAP + 0x40 * 3))]
    assert [(s["blocks"], s["bytes"]) for s in found["suppressed"]] == [(3, 3 * 56)]
    assert run(mixed, "find", "--suppressions", str(rules), "--fail-over", "0")[0] == 1


def test_without_suppressions_one_row_has_all_blocks_of_a_size(mixed: Session) -> None:
    groups = run_json(mixed, "find")["groups"]
    assert [(g["blocks"], g["hint"]) for g in groups] == [(9, '"keep this one"')]
    assert '56 B, e.g. "keep this one"' in run(mixed, "find")[1]


def test_many_leaked_blocks_are_not_examined_individually(mixed: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.audit.leak_groups.MANY", 8)
    groups = run_json(mixed, "find")["groups"]
    assert [(g["blocks"], g["type"], g["hint"]) for g in groups] == [(9, None, '"keep this one"')]


def test_a_limit_is_not_kept_if_memory_is_missing(mixed: Session) -> None:
    assert run(mixed, "find", "--fail-over", "1k")[0] == 0
    mixed.target.truncated = True
    assert run(mixed, "find", "--fail-over", "1k")[0] == 2
    assert run(mixed, "find", "--fail-over", "0")[0] == 1
    assert run(mixed, "find")[0] == 0
