"""Types of structs that begin with objects of classes, and of unions with arrays of numbers."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from typed_programs import COMPILERS, LIBCXX, PROGRAMS, check, check_wrong, measure

import cores
from findleaks.debuginfo.type_names import shorten_template
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.core import open_core
from findleaks.types.spread import Spreading


def test_structs_that_begin_with_a_class(tmp_path: Path) -> None:
    """The vtable in the first word of a struct does not make the block an object of the class of the struct's first member."""
    figures = measure("typed_members.cpp", tmp_path, 100, 1, "-O1")
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert (figures.held + figures.leaked)["none"] == 0, figures


def test_objects_that_look_like_variants(tmp_path: Path) -> None:
    """Arrays of std::variant fit nearly every block. Leaked objects whose pointers fit no other type have types nevertheless."""
    figures = measure("typed_renders.cpp", tmp_path, 20, 1, "-O1", "-std=c++17")
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert figures.leaked["none"] == 0, figures.leaked


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


def compare_with_vtables(core: Path) -> Counter[str]:
    """Count the blocks that begin with a vtable, by their type from debug information: "sure" or "inferred" with "same", "none", or the
    type if it is not the class of the vtable."""
    session, found = Session(open_core(str(core))), Counter[str]()
    session.use_debug_types(True)
    known, blocks, target = known_types(session), session.directory.blocks, session.target
    assert known is not None
    for index in range(len(blocks)):
        word = target.word(blocks.address(index))
        if session.types.is_class(word):
            one, name = known.of(index, blocks.size(index)), shorten_template(session.types.full_name(word))
            is_same = one is not None and shorten_template(one.name) == name
            found["none" if one is None else f"{'sure' if one.is_sure else 'inferred'} {'same' if is_same else one.name}"] += 1
    target.close()
    return found


def test_vtables_contradict_no_certain_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vtables, the types of all objects are certain and right. Without vtables, types follow from pointers alone. Such a type is not
    certain, because the declared class of a pointer may be a base class."""
    program = tmp_path / "game"
    subprocess.run(["g++", "-g", "-std=c++17", "-o", program, PROGRAMS / "typed_shapes.cpp"], check=True)
    with cores.Running([str(program), "100", "1"], tmp_path / "run") as running:
        core = running.gcore()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = compare_with_vtables(core)
    assert list(found) == ["sure same"], found
    monkeypatch.setattr(Spreading, "add_classes", lambda search, words: set[int]())
    alone = compare_with_vtables(core)
    assert sum(alone.values()) == found["sure same"] > 100
    assert not [name for name in alone if name.startswith("sure ") and name != "sure same"], alone
