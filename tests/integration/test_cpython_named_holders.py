"""`roots` names what holds Python's memory: attributes, closures, default arguments, caches, frames, tasks; each with its length."""

from __future__ import annotations

import re
from pathlib import Path

import debuggers
import mallocs_python
import pytest
import truth

import cores

VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in mallocs_python.SUITES]
PROGRAM = truth.PROGRAMS / "python_named_holders.py"

HOLDERS = (
    r"__main__\.MODULE_LIST \(CPython variable\): list of 20",
    r"\[\"cache\"\]: list of 19\b",
    r"__main__\.HANDLER .*closure variable kept: list of 18",
    r"default of argument seen: list of 17",
    r"_lru_cache_wrapper\.cache: dict of 16",
    r"\[\"buffer\"\]: list of 15\b",
    r"list of 13 at .*__main__\.variable",
    r"(\.|\[\")by_name.*: dict of 11",
    r"(\.|\[\")queue.*: collections\.deque of 10",
)
FRAMES = (
    r"keep_frame_local \(CPython frame, thread \d\): local variable results: list of 14",
    r"local variable rows: list of 12",
    r"asyncio task wait_for_ever at",
    r"local variable part: list of 9",
)
"""Before 3.11, frames are objects, whose variables have no names here."""


@pytest.mark.parametrize("version", VERSIONS)
def test_each_holder_is_named(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    with cores.Running(python.command(str(PROGRAM)), tmp_path, python.environment()) as run:
        text = debuggers.findleaks("roots", "--depth", "4", "--limit", "30", "--pid", str(run.pid))
    # Long rows continue on the next line.
    text = re.sub(r"\n {10,}(?=\S)(?![\d.,]+ (B|[KMG]iB) )", " ", text)
    text = re.sub(r" +", " ", text)
    named = [*HOLDERS, *(FRAMES if tuple(map(int, version.split("."))) >= (3, 11) else ())]
    assert [pattern for pattern in named if not re.search(pattern, text)] == [], text
