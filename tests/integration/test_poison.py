"""Words that findleaks considers dead are overwritten in a running program, repeatedly. The program must continue as if nothing had
changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import truth
from poison import Outcome, Poisoned
from variants import mark_matrix_except


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("programs")

    def build(level: str, name: str = "mixed") -> Path:
        output = folder / f"{name}{level}"
        if not output.exists():
            subprocess.run(["gcc", level, "-o", str(output), str(truth.PROGRAMS / f"{name}.c"), "-lm"], check=True)
        return output

    return build


def run_poisoned(program: Path, folder: Path, stops: int, blind: bool = False, steps: int = 40) -> tuple[Outcome, bytes]:
    """Return the outcome, and the output of the program without the overwriting."""
    plain = subprocess.run([str(program)], capture_output=True, check=True).stdout
    return Poisoned([str(program), "trap"], 1, steps, stops, folder / "out", -1, blind).run(), plain


@pytest.mark.parametrize("level", mark_matrix_except(["-O0", "-O2", "-O3"], "-O0", "-O2"))
def test_program_is_unaffected(build, tmp_path: Path, level: str) -> None:
    made, plain = run_poisoned(build(level), tmp_path, 60)
    assert (made.status, made.output) == (0, plain), made.last
    assert made.stops == 60
    assert made.dead[0] >= 60, "general registers"
    assert made.width in (2, 4, 8)
    assert made.dead[1] >= 12 * made.width, "words of vector registers"  # twelve whole registers of any width
    assert made.dead[2] >= 60 * 16, "bytes of red zones"
    assert made.slots >= 10, "words of frames"


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_live_words_of_frames_are_found(build, tmp_path: Path, level: str) -> None:
    """Arguments on the stack, spilled registers, recursion, arrays and setjmp, in functions stopped at any instruction."""
    made, plain = run_poisoned(build(level, "frames"), tmp_path, 60, steps=100)
    assert (made.status, made.output) == (0, plain), made.last
    assert made.stops == 60
    assert made.slots >= 5, "words of frames"


def test_overwritten_live_words_are_detected(build, tmp_path: Path) -> None:
    """If live words are overwritten too, the program fails, so the test would detect an error."""
    made, plain = run_poisoned(build("-O2"), tmp_path, 60, blind=True)
    assert (made.status, made.output) != (0, plain)
