"""`roots` and `stacks` load pyelftools for a program with debug information. Without pyelftools, they print a message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import truth
from layouts import run

from cores import Running
from findleaks.debuginfo.elftools_loader import ELFTOOLS_MISSING

NO_LINES = ("with", "stacks", "--no-lines")
CODE = """
import sys
from findleaks import cli
if sys.argv[1] == "without":
    sys.modules["elftools"] = None  # importing it raises ImportError
status = cli.main(sys.argv[2:])
print(any(name.startswith("elftools.") for name in sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the core of a program with debug information."""
    folder = tmp_path_factory.mktemp("debug")
    subprocess.run(["gcc", "-O1", "-g", "-o", str(folder / "program"), str(truth.PROGRAMS / "roots_c.c"), "-pthread"], check=True)
    with Running([str(folder / "program")], folder / "run") as running:
        return running.gcore()


def run_json(pyelftools: str, *words: object) -> tuple[str, bool]:
    """Return the JSON, and whether pyelftools was loaded."""
    done = run(sys.executable, "-c", CODE, pyelftools, *words, "--json")
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("{")
    return done.stdout, done.stderr.splitlines()[-1] == "True"


def test_pyelftools_is_loaded_for_debug_information(core: Path) -> None:
    for words in (["find"], ["verify"], ["blocks"], ["caches"], ["stacks", "--no-lines"]):
        assert not run_json("with", *words, core)[1], words
    for word in ("roots", "stacks", "verdict"):  # verdict names the largest root, with its fields
        assert run_json("with", word, core)[1], word


def test_stacks_without_pyelftools_have_no_lines(core: Path) -> None:
    whole, bare, plain = (json.loads(run_json(*words, core)[0]) for words in (("with", "stacks"), ("without", "stacks"), NO_LINES))
    assert whole["warnings"] == plain["warnings"] == []
    assert bare["warnings"] == [f"lines and inlined functions are not shown: {ELFTOOLS_MISSING}"]
    assert bare["stacks"] == plain["stacks"] != whole["stacks"]
    assert not any("line" in frame or "inlined" in frame for stack in bare["stacks"] for frame in stack["frames"])


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [name for row in rows for name in [row["name"], *names(row["children"])]]


def test_members_without_pyelftools_have_no_names(core: Path) -> None:
    (with_it, _), (without, loaded) = run_json("with", "roots", core), run_json("without", "roots", core)
    whole, bare = json.loads(with_it), json.loads(without)
    assert not loaded
    assert bare["warnings"] == [*whole["warnings"], f"members of variables have no names: {ELFTOOLS_MISSING}"]
    assert bare["total"] == whole["total"]
    assert [row["name"] for row in bare["roots"]] == [row["name"] for row in whole["roots"]]
    assert names(bare["roots"]) != names(whole["roots"])
