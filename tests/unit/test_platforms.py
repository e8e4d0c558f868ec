"""The table in docs/platforms.md agrees with the marks of the tests, and a test run records what passed."""

from __future__ import annotations

from pathlib import Path

import platforms
import pytest
from platforms import Proof, Recorder, table


def test_page_agrees_with_the_marks() -> None:
    assert platforms.read_table() == table(platforms.read_marks()), "run `make platforms`"


def test_cells() -> None:
    made = table([Proof("AArch64", "glibc", "2.36"), Proof("AArch64", "glibc", "2.31"), Proof("x86-64", "Go", "")])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines()]
    names = rows[0]
    cells = {(row[0], name): cell for row in rows for name, cell in zip(names[1:], row[1:])}
    assert [cells["glibc", name] for name in ("x86-64", "AArch64")] == ["no", "2.31, 2.36"]
    assert [cells["Go", name] for name in ("x86-64", "AArch64")] == ["yes", "no"]
    for wrong in (Proof("AArch64", "glibk", ""), Proof("Z80", "glibc", "")):
        with pytest.raises(ValueError, match="no such row"):
            table([wrong])


SOME = """
import pytest

@pytest.mark.platform("AArch64", "glibc", "Go")
def test_one(): pass

@pytest.mark.platform("AArch64", "Ruby", of="3.1")
@pytest.mark.parametrize("good", [True, False])
def test_two(good): assert good

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.platform("x86-64", "JVM", of="17"))])
def test_three(n): pass
"""


def test_a_run_proves_what_passed(tmp_path: Path) -> None:
    """If several tests prove a row of the table, the row is removed when one of the tests fails."""
    file = tmp_path / "tests" / "test_some.py"
    file.parent.mkdir()
    file.write_text(SOME)
    recorder = Recorder()
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--import-mode=importlib", f"--rootdir={tmp_path}"]
    assert pytest.main([*options, str(file)], plugins=[recorder]) == pytest.ExitCode.TESTS_FAILED
    expected = {Proof("AArch64", "glibc", ""), Proof("AArch64", "Go", ""), Proof("x86-64", "JVM", "17")}
    assert recorder.proofs() == expected
    assert set(platforms.read_marks(tmp_path)) == {*expected, Proof("AArch64", "Ruby", "3.1")}
