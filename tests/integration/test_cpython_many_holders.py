"""`verdict` names the largest of twelve holders, and the command that it suggests lists all of them, each with the path to its objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import mallocs_python
import pytest
import transcripts
import truth
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "python_many_holders.py"
COUNT, BYTES = 3000, 1000
HOLDERS = {
    "__main__.Registry": r'\["items"\]: list of 3,011',
    "__main__.TABLE": r"dict of 3,010",
    "__main__.load": r"lru_cache of 3,009, function load",
    "__main__.HANDLER": r"closure variable kept: list of 3,008",
    "__main__.search": r"default of argument seen: list of 3,007",
    "__main__.GENERATOR": r"local variable pending: list of 3,006",
    "__main__.local": r'values of threads: .*\["batch"\]: list of 3,005',
    "__main__.VARIABLE": r"context variable request_items .*: list of 3,004",
    "__main__.PARTIAL": r"partial search .*\.args: .*list of 3,003",
    "__main__.REFERENCE": r"callback of weak reference: .*closure variable items: list of 3,002",
    "__main__.log": r"handlers.*: .*records.*: list of 3,001",
    "__main__.ERROR": r"\.__traceback__: .*\.tb_frame: frame fail → local variable working: list of 3,000",
}
"""For each variable, what its rows in `roots` contain."""


@pytest.fixture(scope="module", params=mark_matrix_except(mallocs_python.SUITES.keys(), "3.11"))
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    python = mallocs_python.get(request.param)
    with cores.Running(python.command(str(PROGRAM)), tmp_path_factory.mktemp("holders"), python.environment()) as run:
        yield ["--pid", str(run.pid)]


def test_the_largest_holders_are_named_first(where: list[str]) -> None:
    text = transcripts.follow(where)
    (named,) = re.findall(r"Variables that retain it: (.*?) and (\d+) more\.", text)
    sizes = [float(size) for size in re.findall(r"\(([\d.]+) MiB\)", named[0])]
    assert len(sizes) == 6 and sizes == sorted(sizes, reverse=True)
    assert named[0].startswith("__main__.log (")  # each record has a dictionary, too
    assert int(named[1]) == len(HOLDERS) - 6


@pytest.fixture(scope="module")
def roots(where: list[str]) -> str:
    return transcripts.follow(where, "roots")


@pytest.mark.parametrize("name", HOLDERS)
def test_the_suggested_command_lists_every_holder(roots: str, name: str) -> None:
    (row,) = re.findall(rf"([\d.]+) MiB +[\d,]+ +{name} \(CPython variable\)(.*?)(?=[\d.]+ \w+ +[\d,]+ +(?!└)|$)", roots)
    assert float(row[0]) * (1 << 20) > COUNT * BYTES
    assert re.search(HOLDERS[name], row[1]), row[1]
