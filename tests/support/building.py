"""Compile the programs of tests/programs, and define fixtures for a program, a process that runs it, and a core of the process. The
fixtures have module scope."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cores import Running

PROGRAMS = Path(__file__).parents[1] / "programs"
STRICT = ("-Wall", "-Wextra", "-Werror")


def compile_program(folder: Path, source: str, *words: str, name: str = "", compiler: str = "") -> Path:
    """Compile a source of tests/programs into `folder`, with warnings as errors, and return the path of the program. `words`: compiler
    options and libraries. `name`: the program's name; by default, the source's name. `compiler`: by default, GCC's for the language."""
    made = folder / (name or source.partition(".")[0])
    libraries = [word for word in words if word.startswith("-l") or not word.startswith("-")]
    options = [word for word in words if word not in libraries]
    compiler = compiler or ("g++" if source.endswith(".cpp") else "gcc")
    subprocess.run([compiler, *STRICT, *options, "-o", made, PROGRAMS / source, *libraries], check=True)
    return made


def fixture(source: str, *words: str, name: str = "") -> Any:
    """Return a fixture with the path of this program."""

    @pytest.fixture(scope="module")
    def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return compile_program(tmp_path_factory.mktemp("program"), source, *words, name=name)

    return program


def by(build: Callable[[Path], Path]) -> Any:
    """Return a fixture with the path of a program that `build(folder)` compiles."""

    @pytest.fixture(scope="module")
    def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return build(tmp_path_factory.mktemp("program"))

    return program


def running(*arguments: object) -> Any:
    """Return a fixture with a process that runs the fixture `program` with these arguments."""

    @pytest.fixture(scope="module")
    def running(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
        with Running([str(program), *map(str, arguments)], tmp_path_factory.mktemp("run")) as run:
            yield run

    return running


def core() -> Any:
    """Return a fixture with a core that gcore writes of the fixture `running`."""

    @pytest.fixture(scope="module")
    def core(running: Running) -> Path:
        return running.gcore()

    return core
