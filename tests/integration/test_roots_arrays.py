"""`roots` on programs with arrays, vectors and many objects of one kind: each row has exactly the bytes that the programs count."""

from __future__ import annotations

import json
import re
import subprocess
from bisect import bisect_right
from pathlib import Path
from typing import Any

import evidence
import pytest
import rubies
import truth
from debuggers import run_cli

import cores

COUNT = 6000
"""More pointers than `roots` has rows for one owner."""

Row = dict[str, Any]


def run_roots(*words: str) -> Row:
    done = run_cli("roots", "--json", *words, check=True)
    made: Row = json.loads(done.stdout)
    return made


def text(*words: str) -> str:
    done = run_cli("roots", *words, check=True)
    return " ".join(done.stdout.split())


def run_program(folder: Path, source: str, *flags: str) -> tuple[dict[str, list[int]], str]:
    """Return the numbers that the program printed, by name, and its core."""
    program = folder / source.split(".")[0]
    compiler = "g++" if source.endswith("pp") else "gcc"
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-O1", *flags, "-o", str(program), str(truth.PROGRAMS / source)], check=True)
    with cores.Running([str(program), str(COUNT)], folder / "run") as running:
        rows = [line.split() for line in running.output.splitlines()]
        core = running.kernel_core()
    return {row[0]: [int(word) for word in row[1:]] for row in rows if len(row) == 4}, str(core)


def check_totals(row: Row, expected: list[int]) -> None:
    assert (row["name"], row["retained_blocks"], row["retained_bytes"]) == (row["name"], *expected[1:])


@pytest.mark.parametrize("flags", [("-g",), ()], ids=["debug", "plain"])
def test_arrays_of_c(flags: tuple[str, ...], tmp_path: Path) -> None:
    expected, core = run_program(tmp_path, "roots_arrays.c", *flags)
    found = run_roots("--limit", "0", core)
    roots = {row["name"].split(" ")[0]: row for row in found["roots"]}
    for name, numbers in expected.items():
        check_totals(roots[name], numbers)
    for name in ("table", "heap"):  # blocks of ten sizes; every seventh slot of one array is empty
        container = roots[name]["container"]
        assert (container["what"], container["length"], container["problem"]) == ("array of pointers", expected[name][0], None)
    (records,) = roots["records"]["children"]
    assert records["alike"]["fields"] == records["retained_blocks"] == COUNT
    name = re.escape("record[0].name") if flags else "block of [0-9.]+ KiB[+]0x8"
    assert re.search(rf"{COUNT:,} fields like {name}: {COUNT:,} blocks of 24 B", text(core))
    (sessions,) = run_roots("sessions", core)["roots"][0]["children"]
    assert sessions["alike"] == {"fields": 200, "least_blocks": 5, "most_blocks": 5}
    assert (sessions["retained_blocks"], sessions["retained_bytes"]) == tuple(expected["sessions"][1:])
    assert "200 fields like sessions" in text("sessions", core)
    four = run_roots("four", core)["roots"][0]
    if flags:  # according to debug information, the row is a structure
        assert sorted(row["name"] for row in four["children"]) == ["four.first", "four.fourth", "four.second", "four.third"]
    else:
        assert (four["container"]["what"], four["container"]["length"]) == ("array of pointers", 4)
    three = run_roots("three", core)["roots"][0]
    assert three["container"] is None and sorted(row["retained_blocks"] for row in three["children"]) == [1, 1, 2]


def test_arrays_of_c_without_symbols(tmp_path: Path) -> None:
    """A table with empty slots is one variable. No part of it, and none of its neighbours, is attributed to another variable."""
    expected, core = run_program(tmp_path, "roots_arrays.c", "-s")
    rows = [row for row in run_roots("--limit", "0", core)["roots"] if row["container"]]
    lengths = [row["container"]["length"] for row in rows if row["container"]["what"] == "array of pointers"]
    assert expected["heap"][0] in lengths
    assert any(expected["table"][0] <= length <= expected["table"][0] + 16 for length in lengths)  # and adjacent variables


@pytest.mark.parametrize("flags", [("-g",), (), ("-s",)], ids=["debug", "plain", "stripped"])
def test_vectors(flags: tuple[str, ...], tmp_path: Path) -> None:
    """A vector is recognised at any place: a structure that begins with a vector is not an array of three pointers."""
    expected, core = run_program(tmp_path, "roots_vectors.cpp", *flags)
    every = run_roots("--limit", "0", core)["roots"]
    retained = {(row["retained_blocks"], row["retained_bytes"]): row for row in every}
    for name, what, unit in (
        ("g_pool", "std::vector of pointers", "pointers"),
        ("g_wide", "std::vector of pointers", "pointers"),
        ("g_value", "std::vector of pointers", "pointers"),
        ("g_nested", "std::vector of vectors", "vectors"),
    ):
        row = retained[expected[name][1], expected[name][2]]
        assert "-s" in flags or row["name"].startswith(name)
        found = row["container"] or row["children"][0]["container"]
        assert (name, found["what"], found["length"], found["unit"]) == (name, what, expected[name][0], unit)
    names = retained[expected["g_names"][1], expected["g_names"][2]]
    assert names["container"]["what"] == ("std::vector of std::string" if "-g" in flags else "std::vector")
    if "-g" in flags:
        assert "Wide.items: std::vector of pointers" in text(core)


RUBY = """
class Pair; def initialize(n); @a, @b, @c, @d, @e = n, "q" * 1991, nil, n, n; end; end
def fill(holder)
  holder.instance_variable_set(:@kept, (0...N).map { |n| "x" * 999 })
  holder.instance_variable_set(:@pairs, (0...N / 2).map { |n| Pair.new(n) })
end
holder = "a String, whose instance variables are in a table of the interpreter".dup
fill(holder)
GC.start
puts "ready"
STDOUT.flush
sleep
puts holder.instance_variables
"""
"""Two instance variables of a String refer to objects with blocks of malloc."""


def count_held_once(core: Path, size: int, filler: str) -> int:
    """Count the blocks of this usable size with this text to which exactly one word of the core points. A second reference may be stale,
    so no single field retains the block. This scan shares no code with findleaks. A word left by copying may point into the text."""
    listed = [json.loads(line) for line in run_cli("blocks", "--json", "--size", str(size), str(core), check=True).stdout.splitlines()]
    picture = evidence.read(core)
    pointing: dict[int, int] = {}
    for address in (int(one["address"], 16) for one in listed if one.get("kind") == "reachable"):
        segment = picture.at(address)
        assert segment is not None
        if segment.data.startswith(filler.encode(), address - segment.start):
            pointing[address] = 0
    starts = sorted(pointing)
    for word in picture.words(starts[0], starts[-1] + size):
        start = starts[bisect_right(starts, word.value) - 1]
        if word.value < start + size:
            pointing[start] += 1
    return sum(count == 1 for count in pointing.values())


def test_instance_variables_of_a_ruby_string(tmp_path: Path) -> None:
    """Variables of a String, which are in a table of the interpreter, are roots with names, and retain the blocks of their objects."""
    many = 6000
    ruby = rubies.get(rubies.SYSTEM)
    program = tmp_path / "kept.rb"
    program.write_text(f"N = {many}\n{RUBY}")
    with cores.Running([*ruby.words, "--disable-gems", str(program)], tmp_path / "run", ruby.environment) as running:
        core = running.kernel_core()
    roots = {row["name"]: row for row in run_roots("--limit", "0", str(core))["roots"]}
    for name, size, filler, most in (("@kept", 1000, "x" * 999, many), ("@pairs", 1992, "q" * 1991, many // 2)):
        wanted = count_held_once(core, size, filler)
        assert 0.99 * most <= wanted <= most
        row = roots[f"instance variable {name} of one String (Ruby)"]
        assert row["retained_bytes"] >= wanted * size and row["retained_blocks"] >= wanted
