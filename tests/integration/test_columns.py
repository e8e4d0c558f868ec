"""Text is as wide as the terminal. Output into a pipe is not truncated. --limit applies to text and JSON."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from debuggers import ROOT, Terminal, findleaks, gdb, gdb_terminal, lldb

WHOLE = "cycle of 2: std::make_shared<shop::Part> (88 B)"
"""The longest name in the table of the sample core's leaks."""
CUT = "cycle of 2: std::mak…"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("core") / "sample.core"
    made.write_bytes(gzip.decompress((ROOT / "cores" / "sample.core.gz").read_bytes()))
    return made


def widest(shown: str) -> int:
    """Return the width of the longest line on a terminal. Escape sequences of the progress line and of the prompt have no width."""
    return max(len(re.sub(r"\x1b\[\??[0-9]*[A-Za-z]", "", line)) for line in shown.splitlines())


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_command_line(core: Path) -> None:
    piped = findleaks("find", str(core))
    assert WHOLE in piped
    assert [line for line in piped.splitlines() if line.startswith("warning")] == piped.splitlines()[-1:], "a sentence is one line"
    assert CUT in findleaks("find", str(core), COLUMNS="80")
    with Terminal([sys.executable, "-m", "findleaks", "verdict", str(core)]) as terminal:
        shown = terminal.until("--sysroot")
    assert 100 < widest(shown.partition("next:")[0]) <= 120  # text that users paste is not wrapped


@pytest.mark.parametrize("words", [[], ["set width 0"], ["set width unlimited"]], ids=["batch", "0", "unlimited"])
def test_gdb_into_a_pipe(core: Path, words: Sequence[str]) -> None:
    printed = gdb([*words, "leaks find"], "-c", str(core))
    assert WHOLE in printed
    assert CUT in gdb(["set width 80", "leaks find"], "-c", str(core))


def test_gdb_at_a_terminal(core: Path) -> None:
    """The terminal has 120 columns. With `set width 0`, GDB does not wrap lines, but the output is not wider than the terminal."""
    with gdb_terminal("-c", str(core)) as terminal:
        for width in ("120", "0"):
            terminal.run(f"set width {width}", "gdb")
            shown = terminal.run("leaks verdict", "Run `set sysroot DIR`")
            assert 100 < widest(shown) <= 120


def test_lldb_into_a_pipe(core: Path) -> None:
    assert WHOLE in lldb(["leaks find"], "-c", str(core))
    assert WHOLE not in lldb(["settings set term-width 90", "leaks find"], "-c", str(core))


ROWS = {
    "find": "groups",
    "blocks": "",
    "caches": "caches",
    "stacks": "stacks",
    "refs 0x557d0e64c1c0": "references",
    "roots": "roots",
}
"""By command: the key of its rows in the JSON ("": one JSON object on each line)."""


@pytest.mark.parametrize("words", ROWS)
def test_limit_counts_for_text_and_json(core: Path, words: str) -> None:
    def rows(*more: str) -> int:
        lines = findleaks(*words.split(), "--json", *more, str(core)).splitlines()
        return len(json.loads(lines[0])[ROWS[words]]) if ROWS[words] else sum('"address"' in line for line in lines)

    everything = rows("--limit", "0")
    assert everything > 1 and rows("--limit", "1") == 1
    assert rows() == everything
    text = [len(findleaks(*words.split(), "--limit", limit, str(core)).splitlines()) for limit in ("1", "0")]
    assert text[0] < text[1]
