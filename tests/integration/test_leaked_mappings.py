"""All commands show leaked anonymous mappings, and do not report mappings that only look leaked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import building
import hugepages
import pytest
from debuggers import gdb, lldb, objects, run_cli
from variants import mark_matrix_except

import cores

COUNT = 40
PART = 64 << 10


program = building.fixture("mapped.c", "-std=gnu11", "-g", "-O1")
unoptimised = building.fixture("mapped.c", "-std=gnu11", "-g", "-O0")
untouched = building.fixture("untouched.c", "-O1")
reservations = building.fixture("reservations.c", "-std=gnu11", "-g", "-O1")


def find_mappings(program: Path, folder: Path, kind: str, count: int = COUNT, core: bool = False) -> tuple[dict[str, Any], int]:
    """Return the result of `find` for a live process or its core, and the number of mappings that the program lost."""
    with cores.Running([str(program), kind, str(count)], folder / "run") as running:
        words = [str(running.gcore())] if core else ["--pid", str(running.pid)]
        return json.loads(run_cli("find", "--json", *words).stdout), int(running.output.split()[1])


def mappings(body: dict[str, Any], which: str = "mappings") -> int:
    return int(body.get(which, {"blocks": 0})["blocks"])


@pytest.mark.parametrize("core", [False, True], ids=["live", "core"])
@pytest.mark.parametrize(("kind", "function"), [("coroutines", "serve"), ("switched", "run_switched")])
def test_coroutines_whose_handles_are_lost(kind: str, function: str, core: bool, program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, kind, core=core)
    # A stale word may refer to one of them.
    assert lost == COUNT // 2 and lost - 1 <= mappings(body) <= lost
    assert mappings(body, "possible_mappings") == 0
    (group,) = body["groups"]
    assert group["type"] == f"anonymous mapping with a stack of {function}"
    # Only the stack refers to its request and to its handle.
    leaked = body["totals"]["definite"]["blocks"] + body["totals"]["indirect"]["blocks"]
    assert leaked == 3 * mappings(body)


def test_stacks_that_contain_the_halves_of_their_own_handles(unoptimised: Path, tmp_path: Path) -> None:
    """Each stack contains the arguments of makecontext, the two halves of its handle's address. They are a reference only if the stack is
    live."""
    body, lost = find_mappings(unoptimised, tmp_path, "coroutines", 2 * COUNT)
    assert lost == COUNT and lost - 2 <= mappings(body) <= lost
    leaked = body["totals"]["definite"]["blocks"] + body["totals"]["indirect"]["blocks"]
    assert leaked == 3 * mappings(body)


def test_coroutines_on_blocks_of_malloc(program: Path, tmp_path: Path) -> None:
    """A coroutine refers to its handle and to its request, so all three blocks leak together."""
    body, lost = find_mappings(program, tmp_path, "malloced")
    leaked = body["totals"]["definite"]["blocks"] + body["totals"]["indirect"]["blocks"]
    # A stale word may refer to one of the coroutines.
    assert lost == COUNT // 2 and 3 * (lost - 1) <= leaked <= 3 * lost
    assert "stack of serve" in json.dumps(body["groups"]), body["groups"]


@pytest.mark.parametrize("kind", ["pooled", "generated", "cloned", "chained", "adjacent_ends", "adjacent_slots", "reserved_chain"])
def test_mappings_in_use(kind: str, program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, kind)
    assert lost == 0
    assert (mappings(body), mappings(body, "possible_mappings")) == (0, 0)
    assert body["totals"]["definite"]["blocks"] == 0


@pytest.mark.parametrize(("kind", "most"), [("numbered", COUNT), ("ends", 1), ("adjacent_chunks", COUNT // 2)])
def test_doubtful_mappings_are_only_possibly_lost(kind: str, most: int, program: Path, tmp_path: Path) -> None:
    body, _ = find_mappings(program, tmp_path, kind)
    assert mappings(body) == 0
    assert mappings(body, "possible_mappings") <= most
    assert {group["kind"] for group in body["groups"]} <= {"possible"}


def test_signal_stacks_are_only_possibly_lost(program: Path, tmp_path: Path) -> None:
    body, _ = find_mappings(program, tmp_path, "signals", 1)
    assert mappings(body) == 0


def test_cycles_of_mappings_and_blocks(program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, "cycle")
    assert lost - 2 <= mappings(body) <= lost
    (group,) = body["groups"]
    assert (group["type"], group["cycle"]) == ("anonymous mapping", 2)


def test_thread_local_variables_beside_lost_mappings(program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, "large")
    assert lost - 2 <= mappings(body) <= lost
    assert body["mappings"]["bytes"] == mappings(body) * 4 * PART


def test_all_mappings_count_as_live_if_live_ones_contain_too_many_words(program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, "crossing")
    assert lost == COUNT // 2
    assert (mappings(body), mappings(body, "possible_mappings")) == (0, 0)


def test_mappings_that_contain_many_pointers_to_themselves(program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, "arenas")
    assert lost == COUNT // 2 and lost - 1 <= mappings(body) <= lost  # a stale word may refer to one of them


@pytest.mark.parametrize("kind", ["adjacent", "adjacent_headers"])
def test_merged_mappings_are_divided(kind: str, program: Path, tmp_path: Path) -> None:
    body, lost = find_mappings(program, tmp_path, kind)
    assert lost == COUNT // 2 and lost - 1 <= mappings(body) <= lost  # a stale word may refer to one of them
    assert body["mappings"]["bytes"] == mappings(body) * PART
    assert mappings(body, "possible_mappings") == 0


@pytest.mark.matrix
@pytest.mark.alone
def test_huge_pages(program: Path, tmp_path: Path) -> None:
    """Live, huge pages are known to be private. A core does not show this, so they are only possibly lost."""
    with hugepages.reserve(COUNT), cores.Running([str(program), "huge", str(COUNT)], tmp_path / "run") as running:
        lost = int(running.output.split()[1])
        for words, which, finding in (
            (["--pid", str(running.pid)], "mappings", "leaked-mappings"),
            ([str(running.gcore())], "possible_mappings", "possibly-leaked-mappings"),
        ):
            found = json.loads(run_cli("find", "--json", *words).stdout)
            assert lost == COUNT // 2 and lost - 1 <= mappings(found, which) <= lost  # a stale word may refer to one of them
            assert mappings(found, "mappings") + mappings(found, "possible_mappings") == mappings(found, which)
            assert {one["type"] for one in found["groups"]} == {"anonymous mapping with huge pages"}
            verdict = json.loads(run_cli("verdict", "--json", *words).stdout)
            assert finding in {one["finding"] for one in verdict["findings"]}
            assert not [one for one in verdict["shares"] if one["share"] == "shared"]


def test_reservations_to_which_no_word_refers(program: Path, tmp_path: Path) -> None:
    """Parts of a mapping are only possibly lost, because the program may compute the address."""
    body, lost = find_mappings(program, tmp_path, "reservations")
    assert (lost, mappings(body), mappings(body, "possible_mappings")) == (COUNT, 0, COUNT)


def find_live_and_in_core(program: Path, folder: Path, kind: str) -> list[dict[str, Any]]:
    with cores.Running([str(program), kind], folder / "run") as running:
        return [json.loads(run_cli("find", "--json", *words).stdout) for words in (("--pid", str(running.pid)), (str(running.gcore()),))]


def test_paths_of_possibly_lost_mappings(reservations: Path, tmp_path: Path) -> None:
    """No word refers to them, so the path begins with no word."""
    with cores.Running([str(reservations), "guarded"], tmp_path / "run") as running:
        (group, *_) = json.loads(run_cli("find", "--json", "--pid", str(running.pid)).stdout)["groups"]
        path = run_cli("path", group["examples"][0], "--pid", str(running.pid)).stdout
    assert path.startswith("no word in memory: the mapping may be in use without one\n"), path


@pytest.mark.parametrize(
    "kind",
    mark_matrix_except(
        ("every_second", "local", "joined", "block", "upper", "released", "dropped", "guarded", "guarded_local", "slots", "inside"),
        *("joined", "guarded_local", "slots", "inside"),
    ),
)
def test_parts_of_reservations(kind: str, reservations: Path, tmp_path: Path) -> None:
    """The program has the base of a reservation, and can compute the addresses of its accessible parts."""
    for body in find_live_and_in_core(reservations, tmp_path, kind):
        assert mappings(body) == body["totals"]["definite"]["blocks"] == 0
        most = {"inside": 0, "slots": COUNT // 2}.get(kind, COUNT - 1)
        assert most - 3 <= mappings(body, "possible_mappings") <= most  # the program, or stale words, may refer to a few of them


@pytest.mark.parametrize(("kind", "lost"), [("stacks", COUNT - 1), ("buffers", COUNT // 2), ("last_buffer", COUNT - 1)])
def test_mappings_with_guards_are_no_parts_of_reservations(kind: str, lost: int, reservations: Path, tmp_path: Path) -> None:
    for body in find_live_and_in_core(reservations, tmp_path, kind):
        assert lost - 2 <= mappings(body) <= lost  # stale words may refer to a few of them
        assert mappings(body, "possible_mappings") == 0


def test_mappings_without_memory_in_the_core(untouched: Path, tmp_path: Path) -> None:
    """The kernel leaves mappings out of a core that were never written to. Every command works with such leaks."""
    with cores.Running([str(untouched)], tmp_path / "run") as running:
        core = str(running.kernel_core())
    body = json.loads(run_cli("find", "--json", core).stdout)
    assert COUNT - 2 <= mappings(body) <= COUNT  # stale words may refer to a few of them
    address = body["groups"][0]["examples"][0]
    for words in (["blocks"], ["verdict"], ["roots"], ["map"], ["whatis", address], ["refs", address], ["path", address]):
        done = run_cli(*words, "--json", core)
        assert done.returncode == 0, (words, done.stderr)


def test_mappings_that_leaked_with_their_owners(program: Path, tmp_path: Path) -> None:
    """The mappings are in one finding and their owners in another. No part of a finding is larger than the finding."""
    with cores.Running([str(program), "owned", str(COUNT)], tmp_path / "run") as running:
        body = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)
    found = {one["finding"]: one for one in body["findings"]}
    number = found["leaked-mappings"]["evidence"]["mappings"]
    assert COUNT - 2 <= number <= COUNT  # stale words may refer to a few of them
    assert f"Leaked blocks refer to {number} of these mappings" in found["leaked-mappings"]["cause"]
    assert "in blocks and mappings, is" in found["lost"]["cause"]
    assert all(int(part) <= 100 for one in found.values() for part in re.findall(r"(\d+) %", one["cause"]))


def test_every_command_lists_leaked_mappings(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "coroutines", str(COUNT)], tmp_path / "run") as running:
        core = str(running.gcore())
    body = json.loads(run_cli("find", "--json", core).stdout)
    (group,) = body["groups"]
    address, number = group["examples"][0], mappings(body)
    what = json.loads(run_cli("whatis", address, "--json", core).stdout)["answers"][0]
    assert what["block"]["allocator"] == "mmap"
    assert re.search(r"65,536-byte anonymous mapping with a stack of serve", what["text"])
    rows = [json.loads(line) for line in run_cli("blocks", "--allocator", "mmap", "--json", core).stdout.splitlines()[:-1]]
    assert [(row["size"], row["state"]) for row in rows] == [(PART, "in-use")] * number
    verdict = json.loads(run_cli("verdict", "--json", core).stdout)
    finding = next(one for one in verdict["findings"] if one["finding"] == "leaked-mappings")
    assert finding["evidence"]["mappings"] == number
    assert finding["evidence"]["indirect_blocks"] == 2 * number
    assert "stacks of coroutines whose handles were lost" in finding["cause"]
    assert not [one for one in verdict["findings"] if one["finding"] in ("lost", "nothing-lost")]
    share = next(one for one in verdict["shares"] if one["share"] == "leaked-mappings")
    assert (share["count"], share["bytes"]) == (number, number * PART)
    referring = json.loads(run_cli("refs", address, "--json", core).stdout)
    assert referring["references"]
    for other in (gdb(["leaks find --json"], str(program), core), lldb(["leaks find --json"], str(program), "-c", core)):
        answer = json.loads(objects(other)[0])
        assert (answer["groups"], answer["mappings"], answer["totals"]) == (body["groups"], body["mappings"], body["totals"])
