"""Compare the types of a database and of a server with what these programs print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typed_programs import COMPILERS, LIBCXX, Figures, check, check_wrong, measure
from variants import mark_matrix_except

TREES = 200


@pytest.mark.parametrize(
    ("records", "flags"), [(50, "-O2"), *(pytest.param(500, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_store(records: int, flags: str, tmp_path: Path) -> None:
    """Objects with the members of a base struct, which a macro declares, have types, and their tags are known from the pointers of other
    members. So have values behind a union of void pointers and pointers to nodes. A block that refers to a variable of another type does
    not get the type of a struct that declares such a pointer."""
    figures = measure("typed_store.c", tmp_path, records, 1, *flags.split())
    check(figures)
    # Former content refers to a few leaked blocks, and numbers fit other types of numbers.
    check_wrong(figures, 0.01)


@pytest.mark.matrix
@pytest.mark.parametrize("flags", ["-Copt-level=0", "-O", "-O -Clto"])
def test_server(flags: str, tmp_path: Path) -> None:
    """Values of OnceLock, LazyLock and thread_local! have certain types. A leaked block has a type if no other type that a Box may own fits
    it. Types that only a reference refers to do not count, and an array of one element is not a second type."""
    release = re.search(r"1\.(\d+)", subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout)
    once = ["--cfg", "once"] if release is not None and int(release[1]) >= 80 else []
    figures = measure("typed_server.rs", tmp_path, 60, 1, "--edition=2021", "-Awarnings", *flags.split(), *once)
    check(figures)
    assert figures.held["sure wrong"] + figures.leaked["sure wrong"] == 0, figures.wrong[:12]
    assert figures.part(figures.held, "sure right") > 0.4, figures.held


@pytest.mark.parametrize("flags", mark_matrix_except(("-Copt-level=0", "-O", "-O -Clto"), "-Copt-level=0"))
def test_service(flags: str, tmp_path: Path) -> None:
    """The capacity of a vector distinguishes a struct with a Vec from an array of strings, which has the same form."""
    figures = measure("typed_service.rs", tmp_path, 2_500, 1, "--edition=2021", "-Awarnings", *flags.split())
    check(figures)
    check_wrong(figures, 0.01)


@pytest.mark.parametrize("flags", mark_matrix_except(("-O0", "-O2", "-O2 -flto"), "-O2"))
def test_choices(flags: str, tmp_path: Path) -> None:
    """A stale word in a member of a union that is not in use refers to a block of another type. The blocks that the other unions refer to
    do not get this type, although their content fits it."""
    figures = measure("typed_choices.c", tmp_path, 60, 1, *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["none"] == figures.leaked["none"] == 0, (figures.held, figures.leaked)


def test_ready_hints(tmp_path: Path) -> None:
    """The hint files of findleaks for git and uWSGI give types to blocks behind void pointers."""
    figures = measure("typed_ready.c", tmp_path, 20, 1, "-O2")
    # findleaks writes buffers of any data as char[].
    wrong = [line for line in figures.wrong if ": unsigned char[], said char[" not in line]
    assert not wrong, wrong
    assert len(figures.wrong) == 21, figures.wrong
    assert figures.held["none"] == 0, figures.held
    assert figures.sources["hint"] == 21 + 2 * 20 + 2, figures.sources


def test_taken_values(tmp_path: Path) -> None:
    """The value that was taken out of a OnceLock gives no type to the block that its stale pointer refers to."""
    figures = measure("typed_taken.cpp", tmp_path, 0, 1, "-O1", "-std=c++17")
    assert figures.held == {"sure right": 2, "none": 2}, (figures.held, figures.wrong)


def check_trees(figures: Figures) -> None:
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["sure right"] == sum(figures.held.values()) == 5 * TREES, figures.held
    assert figures.leaked["inferred right"] == sum(figures.leaked.values()) == 5 * sum(TREES // 4 + at for at in range(3)), figures.leaked


@pytest.mark.parametrize("flags", mark_matrix_except(("-O0", "-O2", "-O2 -flto"), "-O2"))
def test_trees(flags: str, tmp_path: Path) -> None:
    """The nodes of all associative containers have a type. Those of leaked containers are like those of others."""
    check_trees(measure("typed_trees.cpp", tmp_path, TREES, 1, "-std=c++17", *flags.split()))


@pytest.mark.matrix
@pytest.mark.parametrize("flags", ["-O0", "-O2"])
def test_trees_of_libcxx(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with libc++, whose nodes refer to each other as a base class without a value."""
    monkeypatch.setitem(COMPILERS, ".cpp", "clang++-19")
    check_trees(measure("typed_trees.cpp", tmp_path, TREES, 1, *LIBCXX, flags))


@pytest.mark.parametrize("flags", mark_matrix_except(("-O0", "-O2", "-O2 -flto"), "-O2"))
def test_counted_members(flags: str, tmp_path: Path) -> None:
    """Arrays of structs without pointers have a type if a member is their length. A struct with other data after it is not an array."""
    figures = measure("typed_spans.c", tmp_path, 120, 1, *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert not figures.leaked
    # Only the packets have no type.
    assert figures.held["none"] <= 120 and figures.held["sure right"] >= 3 * 120, figures.held
    assert figures.held["inferred right"] + figures.held["sure right"] >= 5 * 120, figures.held
