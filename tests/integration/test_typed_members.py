"""Types of structs that begin with objects of classes, and of unions with arrays of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_programs import COMPILERS, LIBCXX, check, check_wrong, measure


def test_structs_that_begin_with_a_class(tmp_path: Path) -> None:
    """The vtable in the first word of a struct does not make the block an object of the class of the struct's first member."""
    figures = measure("typed_members.cpp", tmp_path, 100, 1, "-O1")
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert (figures.held + figures.leaked)["none"] == 0, figures


@pytest.mark.matrix
def test_callables_in_the_buffer_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libc++ stores small callables at the start of std::function. The class of such a callable is not reported as the certain type of the
    block that contains it."""
    monkeypatch.setitem(COMPILERS, ".cpp", "clang++-19")
    figures = measure("typed_members.cpp", tmp_path, 100, 1, *LIBCXX)
    every = figures.held + figures.leaked
    assert every["sure wrong"] == 0, figures.wrong[:12]
    assert figures.held["inferred wrong"] <= 1, figures.wrong[:12]


def test_few_objects(tmp_path: Path) -> None:
    """In a small heap, an array of numbers in a union is not taken for another member of the union, and an object with a pointer is not
    taken for a string."""
    figures = measure("typed_script.c", tmp_path, 4, 1, "-O2")
    check_wrong(figures, 0.02)
    assert not [
        line for line in figures.wrong if ": uint64_t[]" in line or line.split(": ")[1].startswith(("map_t, said str", "list_t, said str"))
    ]
