"""CPython's own allocator: its statistics are exact, lost blocks are found, and a healthy interpreter has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import evidence
import mallocs_python
import pytest
import truth
from mallocs_python import CHURN, SUITES, Python, compare_statistics, pymalloc_of

import cores
from findleaks.engine.terms import Kind
from findleaks.session import Session
from findleaks.target.copied import attach
from findleaks.target.core import open_core

REDUCED = "3.11"
VERSIONS = [pytest.param(v, marks=() if v == REDUCED else pytest.mark.matrix) for v in SUITES]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the module that prints the expected state of its blocks."""
    folder = tmp_path_factory.mktemp("modules")
    mallocs_python.extension(truth.PROGRAMS / "pymalloc_truth.c", folder)
    return folder


def own_files(modules: Path) -> list[str]:
    """Return the file of this module. No other code writes to the data of the module."""
    return [file.name for file in modules.iterdir()]


@contextmanager
def session_of(running: cores.Running, picture: str) -> Iterator[Session]:
    session = Session(attach(running.pid) if picture == "live" else open_core(str(running.kernel_core())))
    try:
        yield session
    finally:
        session.close()


def run(python: Python, folder: Path, script: Path, *arguments: str, **environment: str) -> cores.Running:
    return cores.Running(python.command(str(script), *arguments), folder, python.environment(**environment))


@pytest.mark.parametrize("picture", ["live", "kernel"])
@pytest.mark.parametrize("version", VERSIONS)
def test_statistics_are_the_interpreters_own(tmp_path: Path, version: str, picture: str) -> None:
    with run(mallocs_python.get(version), tmp_path, CHURN) as running, session_of(running, picture) as session:
        compare_statistics(session, tmp_path)
        assert pymalloc_of(session).version.startswith(version)


@pytest.mark.parametrize("picture", ["live", "kernel"])
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_in_a_healthy_interpreter(tmp_path: Path, version: str, picture: str) -> None:
    """References point to the start of objects, after the header of the garbage collector, and count as references to the block. No block
    is possibly lost."""
    with run(mallocs_python.get(version), tmp_path, CHURN) as running, session_of(running, picture) as session:
        graph = session.graph()
        assert graph.totals(Kind.REACHABLE).blocks > 30_000
        assert [graph.totals(kind).blocks for kind in (Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)] == [0, 0, 0]


@pytest.mark.parametrize("picture", ["live", "kernel", pytest.param("gcore", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("version", VERSIONS)
def test_lost_blocks_are_exact(modules: Path, tmp_path: Path, version: str, picture: str) -> None:
    python = mallocs_python.get(version)
    command = python.command("-c", "import pymalloc_truth; pymalloc_truth.stop()")
    with cores.Running(command, tmp_path, python.environment(modules)) as running:
        records = truth.parse(running.output)
        core = None if picture == "live" else running.kernel_core() if picture == "kernel" else running.gcore()
        blocks, _ = truth.ask(*(["--pid", str(running.pid)] if core is None else [str(core)]))
        verdict = truth.compare(records, blocks)
        if verdict.held:  # frames of the interpreter contain words that were never initialized
            verdict = evidence.explain(verdict, records, blocks, core or running.kernel_core(), own_files(modules))
    assert verdict.perfect, str(verdict)
    assert {block["allocator"] for block in blocks} == {"pymalloc", "glibc"}


@pytest.mark.parametrize("version", VERSIONS)
def test_without_pymalloc(modules: Path, tmp_path: Path, version: str) -> None:
    """PYTHONMALLOC=malloc: all objects are blocks of malloc, and no block is possibly lost."""
    with (
        run(mallocs_python.get(version), tmp_path, CHURN, "quiet", PYTHONMALLOC="malloc") as running,
        session_of(running, "live") as session,
    ):
        assert [allocator.name for allocator in session.directory.allocators] == ["glibc"]
        graph = session.graph()
        assert [graph.totals(kind).blocks for kind in (Kind.DEFINITE, Kind.INDIRECT)] == [0, 0]


@pytest.mark.parametrize("version", VERSIONS)
def test_debug_hooks(tmp_path: Path, version: str) -> None:
    """PYTHONMALLOC=debug: the program's memory begins two words after the start of a block. References to it count as references to the
    block."""
    with run(mallocs_python.get(version), tmp_path, CHURN, PYTHONMALLOC="debug") as running, session_of(running, "live") as session:
        compare_statistics(session, tmp_path)
        graph = session.graph()
        assert [graph.totals(kind).blocks for kind in (Kind.DEFINITE, Kind.INDIRECT)] == [0, 0]
