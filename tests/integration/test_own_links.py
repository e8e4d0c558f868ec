"""Programs that link their blocks in an unusual form and leak one fifth of them: findleaks reports the state that the program prints for
each block."""

from __future__ import annotations

import json
from pathlib import Path

import building
import pytest
import truth
from debuggers import findleaks
from variants import mark_matrix_except

import cores

FLAGS = ("-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
LINKS = {"compressed": "compressed", "relative": "relative", "relative32": "relative_32"}
TABLES = {
    "compressed0": "compressed",
    "compressed1": "compressed",
    "compressed2": "compressed",
    "compressed": "compressed",
    "compressed4": "compressed",
    "first": "compressed",
    "cage": "compressed",
    "tagged": "tagged",
}


def check(program: Path, folder: Path, disguise: str, *arguments: str) -> None:
    with cores.Running([str(program), *arguments], folder) as run:
        where = ("--pid", str(run.pid))
        verdict = truth.compare(truth.parse(run.output), truth.ask(*where)[0])
        assert not (verdict.false or verdict.wrong or verdict.missed), str(verdict)
        (one,) = json.loads(findleaks("find", "--json", *where))["heuristics"]["disguised"]["conventions"]
        assert (one["disguise"], one["sizes"]) == (disguise, [72])


@pytest.mark.parametrize("kind", LINKS)
def test_chains_of_which_a_fifth_is_leaked(tmp_path: Path, kind: str) -> None:
    check(building.compile_program(tmp_path, "own_links.c", *FLAGS), tmp_path, LINKS[kind], kind, "5600")


@pytest.mark.parametrize("kind", mark_matrix_except(TABLES, "compressed1", "first"))
def test_tables_that_refer_to_four_in_five_blocks(tmp_path: Path, kind: str) -> None:
    check(building.compile_program(tmp_path, "disguised.c", *FLAGS), tmp_path, TABLES[kind], kind, "5500", "5")
