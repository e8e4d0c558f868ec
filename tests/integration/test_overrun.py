"""Blocks written past their ends: `verify` and the warning of `find` name the block whose header was overwritten, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import building
import pytest
from damage import FLAGS
from variants import mark_matrix_except

import cores
from findleaks.commands import Invocation, find_command, parse, parser
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.copied import attach
from findleaks.target.core import open_core

OVERRUNS = (
    "digits 40 8 used",
    "digits 40 16 cached",
    "digits 200 8 free",
    "digits 40 8 used -t",
    "ones 40 24 used",
    "ones 200 32 cached -t",
    "letters 40 1 cached",
    "letters 88 8 used",
    "letters 40 32 top",
    "lower 40 8 cached",
    "A 56 8 used",
    "A 40 1 used",
    "zeros 40 16 used",
    "pointers 40 8 used",
    "numbers 200 24 free -t",
    "ones 40 1 top",
)
"""By name: the byte that fills the block, the requested size, the bytes written past its end, what follows, and -t (in the arena of a
thread)."""


def run(session: Session, word: str) -> tuple[dict[str, Any], str]:
    """Return the JSON of a command, and its text as one line."""
    cmd = find_command(word)
    assert cmd is not None
    args = parse(parser(cmd, "findleaks"), [])
    assert args is not None
    result = cmd.run(session, args)
    return dict(next(iter(result.json()))), " ".join(" ".join(result.text(80, Invocation())).split())


program = building.fixture("overrun_glibc.c", *FLAGS, "-pthread", name="overrun")


class Told:
    """What the program printed about the overrun, and the results of findleaks."""

    def __init__(self, program: Path, words: str, folder: Path, live: bool) -> None:
        with cores.Running([str(program), *words.split()], folder) as running:
            said = dict(line.split()[:2] for line in running.output.splitlines() if " " in line)
            target: Target = attach(running.pid) if live else open_core(str(running.kernel_core()))
            session = Session(target)
            (self.verify, first), (self.find, second) = (run(session, word) for word in ("verify", "find"))
            session.close()
        self.texts = [first, second]
        self.culprit, self.victim = int(said["culprit"], 16), int(said["victim"], 16)

    @property
    def first(self) -> dict[str, Any]:
        return next(problem for problem in self.verify["problems"] if problem["corrupt"])


@pytest.mark.parametrize("words", mark_matrix_except(OVERRUNS, *OVERRUNS[::2], OVERRUNS[1], OVERRUNS[3]))
def test_find_and_verify_name_the_overwritten_block(program: Path, tmp_path: Path, words: str) -> None:
    reported = Told(program, words, tmp_path, live=OVERRUNS.index(words) % 2 == 0)
    chunk = reported.victim - 16
    assert chunk <= int(reported.first["damaged"]["address"], 16) < reported.victim, reported.first
    assert hex(reported.victim) in reported.first["what"] or hex(chunk) in reported.first["what"]
    neighbours = reported.first["neighbours"]
    assert int(neighbours["before"]["address"], 16) == reported.culprit, neighbours
    assert reported.first["what"] in reported.find["warnings"], "`find` and `verify` report the same block"
    assert all(reported.first["what"] in text for text in reported.texts), "text and JSON agree"
    blamed = [problem for problem in reported.verify["problems"] if hex(reported.culprit - 16) in problem["what"].split(":")[0]]
    assert not blamed, "the block that was written past its end has an intact header"


def test_ambiguous_damage_is_reported(program: Path, tmp_path: Path) -> None:
    """The overwritten size is 0x41, the letter A, which points into the written text. The chain of sizes fits both headers, so findleaks
    says that it cannot decide."""
    reported = Told(program, "A 104 1 used", tmp_path, live=True)
    what = reported.first["what"]
    assert "cannot be determined which of the two was overwritten" in what and hex(reported.victim) in what
    assert reported.first["what"] in reported.find["warnings"]
    assert all(reported.first["what"] in text for text in reported.texts)
