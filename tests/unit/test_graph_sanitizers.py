"""The C engine under AddressSanitizer and UndefinedBehaviorSanitizer, in separate processes: the unit tests again, and whole commands."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import commandline
import graphs
import held
import pytest
import sanitizers

from findleaks import cli
from findleaks.engine.dominators import SHARED, root_node

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.matrix)])
def environment(request: pytest.FixtureRequest, shared_folder: Path) -> dict[str, str]:
    """Return the runtimes of the sanitizers and a build of the C engine with them: of some variants, or of all, which
    also try more random examples."""
    return sanitizers.environment(shared_folder, request.param == "all")


def test_sanitizer_reports_a_read_beyond_a_piece(environment: dict[str, str]) -> None:
    """Proof that the tests above can fail: a piece whose length is too large."""
    code = """
import graphs
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.memory import c_piece
piece = c_piece(graphs.piece(0x1000, bytes(64)))
piece.length = 128
graphs.native().library.fl_search(piece, 1, 2, CWords())
"""
    environment = {**environment, "PYTHONPATH": str(Path(graphs.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


COMMANDS = """
import os, sys
import commandline
from findleaks import cli
from findleaks.target.arch import X86_64
from findleaks.engine import load as engine
from findleaks.engine.native import library as kernel_library
kernel_library.LIBRARY = os.environ["FINDLEAKS_TEST_KERNEL"]
assert engine.load(X86_64).name == "native"
cli._open = commandline.opening_once(cli._open)
for line in sys.stdin:
    print(line, end="", file=sys.stderr)
    assert cli.main(line.split()) == 0
"""


def test_commands_under_sanitizers(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command on a real core: no report of a sanitizer, and the same output as with the normal C engine."""
    monkeypatch.delenv("FINDLEAKS_PURE", raising=False)
    monkeypatch.setattr(cli, "_open", commandline.opening_once(cli._open))
    core = str(ROOT / "cores/sample.core.gz")

    def run_command(words: str) -> str:
        assert cli.main([*words.split(), "--json", core]) == 0
        return capsys.readouterr().out

    leaked = json.loads(run_command("find"))["groups"][0]["examples"][0]
    held = json.loads(run_command("roots"))["roots"][0]["address"]
    commands = ["find", "roots", "roots --lost", "verdict", "caches", "map", "verify", "stacks"]
    commands += ["blocks", "blocks --kind lost --sort size"]
    commands += [f"{word} {address}" for word in ("whatis", "refs") for address in (leaked, held)]
    lines = "".join(f"{words} --json {core}\n" for words in commands)
    kept = {name: value for name, value in environment.items() if name != "FINDLEAKS_PURE"}
    kept["PYTHONPATH"] = str(Path(graphs.__file__).parent)
    done = subprocess.run([sys.executable, "-c", COMMANDS], env=kept, input=lines, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout == "".join(map(run_command, commands))


def test_memory_of_graphs_is_freed() -> None:
    """A process that creates and releases a graph many times does not grow."""
    heap = graphs.random_heap(1, 4000, 16, 5)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def round_() -> None:
        graph = graphs.graph_of(graphs.native(), heap, graphs.Heuristic(15))
        graph.groups(heap.pieces, graphs.VTABLES)
        graph.group_typed(heap.pieces, graphs.VTABLES)
        graph.path(0)

    for _ in range(60):  # until malloc has enough free memory to reuse
        round_()
    before = resident()
    for _ in range(60):
        round_()
    assert resident() - before < 256  # pages: if each round leaked its graph, these would be some 40 pages per round and 2,400 in total


def test_memory_of_trees_and_fields_is_freed() -> None:
    """A process that creates and releases trees and fields many times does not grow. Half of them are unfinished."""
    rng = random.Random(1)
    graph = held.make_graph(graphs.native(), [[t for t in rng.choices(range(20_000), k=3) if t != index] for index in range(20_000)])

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def round_(number: int) -> None:
        dominators = graph.dominators(2)
        dominators.refer(0, range(0, 20_000, 100))
        dominators.refer(1, [5, 7])
        done = dominators.compute(1 << (8 + number % 16))
        if done:
            below = dominators.within(root_node(0), 3)
            below.refer(number % 3, range(0, 20_000, 100))
            if below.compute(1 << (number % 20)):
                below.spread(SHARED, 10)
                below.children(root_node(1), 10)
            dominators.spread(SHARED, 10)

    for number in range(32):
        round_(number)
    before = resident()
    for number in range(96):
        round_(number)
    assert resident() - before < 256  # pages: a leaked tree would be some 120 pages


# Several files run in one process, because its start and imports take longer under a sanitizer than most tests. Two parts can run at once.
FILES = {
    "blocks": (
        "test_blocks_rows.py",
        "test_counted_objects.py",
        "test_dominators.py",
        "test_dominators_leaves.py",
        "test_dominators_reduction.py",
        "test_dominators_shapes.py",
        "test_dwarf_hostile.py",
        "test_graph_blocks.py",
        "test_graph_bytes_in.py",
        "test_graph_chunks.py",
        "test_graph_kind_bytes.py",
        "test_graph_pages.py",
        "test_graph_slots.py",
        "test_sample.py",
    ),
    "graph": (
        "test_disguises.py",
        "test_graph.py",
        "test_graph_excluded_words.py",
        "test_graph_follow.py",
        "test_graph_labels.py",
        "test_graph_links.py",
        "test_graph_memory.py",
        "test_graph_objects.py",
        "test_graph_records.py",
        "test_graph_runs.py",
        "test_graph_sum_by_value.py",
        "test_graph_trees.py",
        "test_graph_variants.py",
        "test_graph_words.py",
        "test_handles.py",
        "test_interior_structures.py",
        "test_interiors.py",
        "test_pointer_runs.py",
        "test_type_spread.py",
    ),
}

WITHOUT = ("pure", "test_a_program_in_cpp")
LARGE = (
    "test_all_options_with_and_without_the_c_engine",
    "test_chance_hides_no_leak",
    "test_fields_with_blocks_and_leaf_trees_in_turn",
    "test_numbers_in_a_table_hide_no_group",
    "test_numbers_of_blocks_near_the_limits_of_one_and_two_bytes",
    "test_numbers_of_blocks_that_need_more_than_one_byte and 33000",
    "test_random_addresses_hide_no_small_group",
    "test_shared_leaves_of_a_long_list",
    *(f"test_sizes_in_one_or_two_bytes and {size}" for size in ("255", "4096", "32", "none")),
)
"""Tests with large heaps, which take four fifths of the time. The matrix runs them, too."""


@pytest.mark.parametrize("part", FILES)
def test_c_engine_under_sanitizers(part: str, environment: dict[str, str], request: pytest.FixtureRequest) -> None:
    """Run the tests of each file again, with the fraction of random examples that graphs.share() returns. Two kinds of
    tests are left out: tests of the reference engine alone, and tests of the sample core, whose commands load the
    normal C engine (test_commands_under_sanitizers runs such commands)."""
    every = request.node.callspec.params["environment"] == "all"
    without = " and ".join(f"not ({words})" for words in (*WITHOUT, *(() if every else LARGE)))
    files = [str(ROOT / "tests/unit" / name) for name in FILES[part]]
    # Asserts are not rewritten, which would take seconds here: the tests without a sanitizer print the details. The
    # sanitizers write to standard error when the process ends, so output must not be captured.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--assert=plain",
        "--capture=sys",
        "-k",
        without,
        *files,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert [name for name in FILES[part] if f"{name} ." not in done.stdout] == []  # each file has tests, and they ran
