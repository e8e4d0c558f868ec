"""Damage under each allocator: `verify` reports the damage that the allocator's structures can show, at its place, and reports no damage
elsewhere.

The table in docs/verify.md has the content of SEEN.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import accuracy
import damage
import libcs
import mallocs_jemalloc
import mallocs_mimalloc
import mallocs_musl
import mallocs_scudo
import mallocs_tcmalloc
import pytest
import truth

import cores

ANY = truth.PROGRAMS / "corrupt_any.c"
TRUTH = (*accuracy.FLAGS, "-O1")
BUILTINS = ("-fno-builtin-malloc", "-fno-builtin-free")

SCENARIOS = {
    "none": "",
    "overrun 64 8 text": "text",
    "overrun 5000 1 text": "text",
    "header 64 8 pointers": "pointer",
    "uaf 64 16 text": "text",
    "uaf 200 8 pointers": "pointer",
    "double 64": "",
}
"""By kind of damage to a heap: the text that findleaks must report as written."""

FURTHER = {"overrun 64 1 text": "text", "overrun 5000 16 pointers": "pointer", "header 64 8 text": "text", "double 200": ""}

SEEN = {
    "jemalloc": {"double"},
    "tcmalloc": {"uaf", "double"},
    "mimalloc": {"uaf", "double"},
    "mimalloc padded": {"overrun", "header", "uaf"},
    "scudo": set(),
    "musl mallocng": {"overrun", "header"},
    "musl oldmalloc": {"overrun", "header", "uaf"},
}
"""The kinds of damage that an allocator's structures can show. The other kinds leave no trace: jemalloc, tcmalloc and mimalloc store
nothing between blocks, and jemalloc and mallocng store nothing in freed blocks. There are 8 unused bytes before each block of scudo, and
at least 16 after it."""

NOTICED = {"scudo": {"double"}, "musl mallocng": {"double"}, "musl oldmalloc": {"double"}}
"""The kinds of damage for which free() itself aborts the program."""

Build = Callable[["Malloc", Path], tuple[Path, dict[str, str]]]


class Malloc(NamedTuple):
    """A version of an allocator: `name` as in SEEN, `build` of mimalloc."""

    name: str
    version: str
    build: str = "release"


HERE = (
    Malloc("jemalloc", "5.3.0"),
    Malloc("tcmalloc", "2.10"),
    Malloc("mimalloc", "2.0.9"),
    Malloc("mimalloc", "3.0.1"),
    Malloc("musl mallocng", "1.2.3"),
    Malloc("musl oldmalloc", "1.2.3"),
)
OTHERS = (
    Malloc("scudo", mallocs_scudo.INSTALLED),
    *(Malloc("jemalloc", version) for version in mallocs_jemalloc.SUITES if version != "5.3.0"),
    *(Malloc("tcmalloc", version) for version in mallocs_tcmalloc.SUITES if version != "2.10"),
    *(Malloc("mimalloc", version) for version in ("2.1.7", "2.2.5", "2.3.2", "3.1.5", "3.2.8", "3.3.2", "3.4.3")),
    *(Malloc("mimalloc padded", version, build) for version in ("2.1.7", "2.2.5", "3.3.2") for build in ("secure", "debug")),
    *(Malloc(f"musl {name}", version) for version in mallocs_musl.SUITES for name in ("mallocng", "oldmalloc") if version != "1.2.3"),
)
MATRIX = pytest.mark.matrix


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("corrupt")
    made: dict[tuple[object, ...], Path] = {}

    def once(key: tuple[object, ...], compile_: Callable[[Path], object]) -> Path:
        if key not in made:
            made[key] = folder / str(len(made))
            compile_(made[key])
        return made[key]

    def build_program(malloc: Malloc, source: Path) -> tuple[Path, dict[str, str]]:
        """Return the built program, and the environment in which it uses this malloc."""
        flags = damage.FLAGS if source == ANY else TRUTH
        if malloc.name.startswith("musl"):
            version = malloc.version + ("-old" if malloc.name.endswith("oldmalloc") else "")
            musl = mallocs_musl.choose(version, "static")
            return once((version, source), lambda output: musl.compile(source, output, "static", *BUILTINS)), {}
        if malloc.name == "tcmalloc":
            tcmalloc = mallocs_tcmalloc.get(malloc.version)
            return once(
                ("tcmalloc", malloc.version, source), lambda output: tcmalloc.compile(source, output, flags)
            ), tcmalloc.environment()
        libc = ""
        if malloc.name == "scudo":
            library = mallocs_scudo.library(malloc.version)
        elif malloc.name == "jemalloc":
            library = mallocs_jemalloc.get(malloc.version).library
            libc = mallocs_jemalloc.LIBCS.get(malloc.version, "")
        else:
            library = mallocs_mimalloc.library(malloc.version, malloc.build)
        if libc:
            return once((libc, source), lambda output: libcs.get(libc).compile(source, output, flags)), {"LD_PRELOAD": str(library)}
        command = ["gcc", *flags, str(source), "-pthread", "-o"]
        return once((source,), lambda output: subprocess.run([*command, str(output)], check=True)), {"LD_PRELOAD": str(library)}

    return build_program


def check(build: Build, malloc: Malloc, folder: Path, scenario: str, written: str, picture: str) -> None:
    """Run the program, which damages its heap, and check the output of `verify`."""
    program, environment = build(malloc, ANY)
    kind = scenario.split()[0]
    command, settings = [str(program), *scenario.split()], {**os.environ, **environment}
    if kind in NOTICED.get(malloc.name, ()):
        with pytest.raises(RuntimeError, match="ended with -"), cores.Running(command, folder, settings):
            pass
        return
    with cores.Running(command, folder, settings) as running:
        said = damage.story(running.output)
        reported, status = damage.look(running, picture)
    assert malloc.name.split()[0] in {allocator["name"] for allocator in reported["allocators"] if allocator["blocks"]}
    if kind not in SEEN[malloc.name]:
        assert (status, reported["sound"], reported["problems"]) == (0, True, []), reported["problems"]
        return
    assert (status, reported["sound"]) == (1, False), reported
    first = next(problem for problem in reported["problems"] if problem["corrupt"])
    compare(first, kind, said, written)


def compare(first: dict[str, Any], kind: str, said: damage.Story, written: str) -> None:
    """Check that the first problem is the damage: its place, its neighbours, its text."""
    place, near = int(first["address"], 16), first["neighbours"]
    if kind == "double":
        assert place == said.blocks["victim"] == int(near["at"]["address"], 16)
        assert "twice" in first["what"] or "2 times" in first["what"], first["what"]
        assert first["written"] is None, "nothing was overwritten"
        return
    assert said.damage <= place < said.damage + 8, (hex(said.damage), first)
    assert first["written"]["is"] in (written, "pointer", "number", "bytes") if kind == "header" else first["written"]["is"] == written, (
        first
    )
    if kind == "uaf":
        assert int(near["at"]["address"], 16) == said.blocks["victim"] == place
        assert "after it was freed" in first["cause"]
    elif kind == "overrun":
        assert int(near["before"]["address"], 16) == said.blocks["before"]
        assert f"{said.blocks['before']:#x} was written past its end" in first["cause"]
        assert 0 < first["overrun"] <= said.wrote


def is_tested(malloc: Malloc, scenario: str) -> bool:
    """Return whether `make test` runs the scenario: one of each kind of damage that leaves traces."""
    kinds = SEEN[malloc.name] | NOTICED.get(malloc.name, set())
    return scenario not in ("overrun 5000 1 text", "uaf 200 8 pointers") and scenario.split()[0] in kinds


DAMAGED = [(malloc, scenario) for malloc in HERE for scenario in SCENARIOS]
BLIND = (HERE[0], "overrun 64 8 text")
"""Check one kind of damage that leaves no trace. The matrix checks the other kinds."""


@pytest.mark.parametrize(
    ("malloc", "scenario"),
    [pytest.param(*one, id=f"{' '.join(one[0])}-{one[1]}", marks=() if one == BLIND or is_tested(*one) else MATRIX) for one in DAMAGED],
)
def test_damage(build: Build, tmp_path: Path, malloc: Malloc, scenario: str) -> None:
    picture = "kernel" if (HERE.index(malloc) + list(SCENARIOS).index(scenario)) % 2 else "live"
    check(build, malloc, tmp_path, scenario, SCENARIOS[scenario], picture)


@MATRIX
@pytest.mark.parametrize("picture", ["kernel", "live"])
@pytest.mark.parametrize("scenario", {**SCENARIOS, **FURTHER})
@pytest.mark.parametrize("malloc", [*HERE, *OTHERS], ids=" ".join)
def test_every_damage_and_version(build: Build, tmp_path: Path, malloc: Malloc, scenario: str, picture: str) -> None:
    check(build, malloc, tmp_path, scenario, {**SCENARIOS, **FURTHER}[scenario], picture)


def check_sound(build: Build, malloc: Malloc, folder: Path, threads: int, scale: int, picture: str) -> None:
    """Check that `verify` examined all of the heap of a healthy program with many threads, and found no damage."""
    program, environment = build(malloc, accuracy.SOURCE)
    command = [str(program), str(threads), str(threads + scale), str(scale), "ae" if malloc.name == "scudo" else "a"]
    with cores.Running(command, folder, {**os.environ, **environment}) as running:
        reported, status = damage.look(running, picture)
    assert (status, reported["sound"], reported["problems"]) == (0, True, []), reported["problems"][:3]
    mine = [allocator for allocator in reported["allocators"] if allocator["name"] == malloc.name.split()[0]]
    assert mine and all(allocator["blocks"] and any(allocator["checked"].values()) for allocator in mine)


@pytest.mark.parametrize("malloc", HERE, ids=" ".join)
def test_sound_heaps(build: Build, tmp_path: Path, malloc: Malloc) -> None:
    check_sound(build, malloc, tmp_path, 5, 1, "kernel")


@MATRIX
@pytest.mark.parametrize("threads", [5, 33])
@pytest.mark.parametrize("picture", ["kernel", "live"])
@pytest.mark.parametrize("malloc", [*HERE, *OTHERS], ids=" ".join)
def test_sound_heaps_of_every_version(build: Build, tmp_path: Path, malloc: Malloc, picture: str, threads: int) -> None:
    check_sound(build, malloc, tmp_path, threads, 2, picture)
