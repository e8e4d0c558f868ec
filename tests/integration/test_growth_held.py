"""`diff` names what retains memory that grew in C++, Ruby and Python: the variable or the types of the objects, with the counts of the
program."""

from __future__ import annotations

import sys
from pathlib import Path

import building
import pytest
import rubies
import truth
from debuggers import run_cli
from growing import Rounds, run_diff
from variants import mark_matrix_except

FIRST, MORE = 2000, 20_000


map_program = building.fixture("growth_map.cpp", "-O1", "-g", name="growth")


def nodes(lines: list[str]) -> int:
    """Return the number of nodes of the growing map, as the program prints it."""
    (line,) = [line for line in lines if line.startswith("sessions ")]
    return int(line.split()[2])


@pytest.mark.parametrize("fixed", mark_matrix_except({"addresses the same": True, "addresses random": False}, "addresses random"))
def test_one_map_of_two_runs_of_a_cpp_program(map_program: Path, tmp_path: Path, fixed: bool) -> None:
    """The cores are of two processes, one hour apart. The field is matched by its name."""
    words = ["setarch", "-R", str(map_program)] if fixed else [str(map_program)]
    with Rounds(words, tmp_path / "one") as one:
        before, first = nodes(one.round(FIRST)), one.core("one", 0)
    with Rounds(words, tmp_path / "two") as two:
        after, last = nodes(two.round(FIRST + MORE)), two.core("two", 1)
    answer, text = run_diff(first, last)
    headline = text.splitlines()[0]
    assert f"retained by g_registry (growth, data) → Registry.sessions: std::map, {before:,} → {after:,} nodes" in " ".join(text.split())
    assert headline.startswith("several processes of growth (build-id ")
    row = answer["grown"][0]
    assert (row["what"], row["name"], row["delta"] > 20_000 * 40) == ("root", "g_registry (growth, data)", True)
    assert [(part["what"], part["name"], part["counts"]) for part in row["inside"]][-1] == (
        "container",
        "Registry.sessions",
        [before, after],
    )
    assert (row["per_hour"], row["trend"], answer["seconds"]) == (None, "unknown", None)
    assert " an hour" not in text and "AN HOUR" not in text
    assert answer["several_processes"] == f"pid {one.pid}, pid {two.pid}"
    assert answer["differences"] == [f"several processes of the program: pid {one.pid}, pid {two.pid}"]
    assert all(abs(other["delta"]) < row["delta"] / 4 for other in answer["grown"][1:])


@pytest.mark.matrix
def test_a_map_that_shrinks_again(map_program: Path, tmp_path: Path) -> None:
    """One map grows and shrinks repeatedly, and another one only grows."""
    with Rounds([str(map_program)], tmp_path) as one:
        teeth, leaks = [], []
        for at in range(3):
            for number, count in enumerate((6000, 6000, -12_000)):
                one.round(count)
                teeth.append(one.snapshot(f"tooth{at}{number}"))
        for at in range(3):
            for number, count in enumerate((6000, 6000, -8_000)):
                one.round(count)
                leaks.append(one.snapshot(f"leak{at}{number}"))
    answer, text = run_diff(*teeth)
    (row,) = [row for row in answer["grown"] if row["name"] == "g_registry (growth, data)"]
    assert row["trend"] == "saw-tooth"
    assert "; nothing grows; largest saw-tooth: between " in " ".join(text.split())
    answer, text = run_diff(*leaks)
    row = answer["grown"][0]
    assert (row["name"], row["trend"]) == ("g_registry (growth, data)", "growing")
    assert row["inside"][-1]["counts"][-1] - row["inside"][-1]["counts"][0] == 12_000 - 6000
    assert "still growing at the end" in " ".join(text.split())


@pytest.mark.matrix
def test_a_map_that_is_filled_at_first(map_program: Path, tmp_path: Path) -> None:
    """A map that is filled once at the start is not reported as growth."""
    with Rounds([str(map_program)], tmp_path) as one:
        samples = []
        for at, count in enumerate((2000, 9000, 6000, 0, 0, 0, 0, 0)):
            one.round(count)
            samples.append(one.snapshot(str(at)))
    answer, text = run_diff(*samples)
    (row,) = [row for row in answer["grown"] if row["name"] == "g_registry (growth, data)"]
    assert row["trend"] == "plateau"
    assert "; nothing grows any more; grew at first: + " in " ".join(text.split())
    assert "g_registry (growth, data) → Registry.sessions: std::map, 2,000 → 17,000 nodes" in " ".join(text.split())
    assert "  1. " not in text


@pytest.mark.matrix
def test_a_dictionary_of_a_python_module(tmp_path: Path) -> None:
    with Rounds([sys.executable, str(truth.PROGRAMS / "growth_held.py")], tmp_path) as one:
        assert one.round(FIRST) == [f"sessions {FIRST}"]
        first = one.snapshot("first")
        assert one.round(MORE) == [f"sessions {FIRST + MORE}"]
        last = one.snapshot("last")
    answer, text = run_diff(first, last)
    row = answer["grown"][0]
    assert row["name"].startswith("__main__.sessions (")
    assert row["counts"][1] - row["counts"][0] == pytest.approx(5 * MORE, rel=0.1)  # object, attributes, list, text, key
    assert "retained by __main__.sessions (" in " ".join(text.split()).partition(" BEFORE ")[0]
    (objects,) = answer["objects"]
    assert objects["runtime"] == "CPython"
    counts = {one["name"]: one["counts"] for one in objects["types"]}
    assert counts["__main__.Session"] == [FIRST, FIRST + MORE]
    assert f"__main__.Session {FIRST:,} → {FIRST + MORE:,}" in " ".join(text.split())


def test_an_array_of_a_ruby_class(tmp_path: Path) -> None:
    """The finding names the constant and its number of elements. Its row has the retained memory in blocks of malloc and in Ruby's heap."""
    ruby = rubies.get(rubies.SYSTEM)
    words = [*ruby.words, str(truth.PROGRAMS / "growth_held.rb")]
    with Rounds(words, tmp_path, ruby.environment) as one:
        assert one.round(FIRST) == [f"SESSIONS {FIRST}"]
        first = one.snapshot("first")
        assert one.round(MORE) == [f"SESSIONS {FIRST + MORE}"]
        last = one.snapshot("last")
    answer, text = run_diff(first, last)
    counts = {each["name"]: each["counts"] for each in answer["objects"][0]["types"]}
    assert counts["Session"] == [FIRST, FIRST + MORE]
    assert [counts[name][1] - counts[name][0] for name in ("Hash", "String")] == pytest.approx([MORE, MORE], abs=20)
    row = answer["grown"][0]
    assert (row["what"], row["name"]) == ("root", "Store::SESSIONS (Ruby variable)")
    objects, array = row["inside"]
    assert (objects["what"], array["what"], array["counts"]) == ("objects", "container", [FIRST, FIRST + MORE])
    assert objects["counts"][1] - objects["counts"][0] == 3 * MORE  # the session, its Hash, and its note
    native = row["delta"] - (objects["bytes"][1] - objects["bytes"][0])
    assert MORE * 120 < native < MORE * 200  # each text has about 130 characters
    assert f"retained by Store::SESSIONS (Ruby variable): Array, {FIRST:,} → {FIRST + MORE:,} elements" in " ".join(text.split())
    assert " of Ruby's heap in 6,001 → 66,001 objects." in " ".join(text.split())
    heap = next(row for row in answer["grown"] if row["name"].startswith("Ruby heap pages"))
    assert abs(heap["delta"]) < MORE * 40, "the objects are the variable's"
    table = run_cli("diff", "--by", "runtime", str(first), str(last), check=True).stdout
    assert f"Ruby: Session, {FIRST:,} → {FIRST + MORE:,}" in table
