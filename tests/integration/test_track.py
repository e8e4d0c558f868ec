"""`track` on a program that prints what it allocated at which place, and whether it was freed, kept or lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from counts import until
from patched import mappings, stubs
from tracking import JEMALLOC, Note, Tracked, build, by_gdb, by_line, read_result, recording, start_tracked, through


class Run(NamedTuple):
    """The result of `track` for one round of the program."""

    program: Tracked
    notes: list[Note]
    report: dict[str, Any]
    mappings: int


RUNS = {"glibc": (by_line, ""), "jemalloc": (by_line, JEMALLOC), "in GDB": (by_gdb, "")}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    front_end, preload = RUNS[request.param]
    with start_tracked([str(build(tmp_path_factory.mktemp("tracked")))], preload) as program:
        before = mappings(program.pid)
        program.round()  # arenas and stacks of threads are created
        working = recording(front_end(program.pid, "--json"), program.pid)
        notes = program.round()
        working.send_signal(signal.SIGINT)
        yield Run(program, notes, read_result(working), before)


@pytest.mark.platform("x86-64", "`count --inject`, `track`")
def test_every_site_has_its_blocks(run: Run) -> None:
    """`track` reports the numbers and bytes of freed, kept and lost blocks that the program prints."""
    truth: dict[str, Counter[str]] = {}
    for note in run.notes:
        truth.setdefault(note.site, Counter()).update({note.fate: 1, f"{note.fate} bytes": note.size})
    assert len(truth) == 14
    for site, counts in truth.items():
        stacks = through(run.report, site)
        if site in ("by_realloc", "fails"):  # these sites also allocate other blocks: one that is reallocated, and exceptions
            stacks = [one for one in stacks if one["held"]["blocks"]]
        found: Counter[str] = Counter()
        for stack in stacks:
            for fate in ("freed", "held", "lost"):
                found.update({fate: stack[fate]["blocks"], f"{fate} bytes": stack[fate]["bytes"]})
        assert +found == +counts, site
    (moved,) = [one for one in through(run.report, "by_realloc") if not one["held"]["blocks"]]
    assert moved["freed"] == {"blocks": 90, "bytes": 720}


def test_lost_blocks_are_those_of_the_program(run: Run) -> None:
    fates = {note.address: (note.site, note.fate) for note in run.notes}
    seen = 0
    for stack in run.report["stacks"]:
        for address in stack["examples"]:
            assert fates[int(address, 16)][1] == "lost"
            assert through({"stacks": [stack]}, fates[int(address, 16)][0])
            seen += 1
    assert seen >= 30


def test_stacks_are_whole(run: Run) -> None:
    for stack in run.report["stacks"]:
        assert stack["complete"]
        assert any(frame["function"] == "start_thread" or frame["function"] == "main" for frame in stack["frames"])
        total = sum(stack[fate]["blocks"] for fate in ("freed", "held", "lost"))
        assert stack["allocated"]["blocks"] == total
    assert {holder["name"] for stack in through(run.report, "one") for holder in stack["holders"]} == {"kept (tracked, data)"}
    assert (run.report["not_recorded"], run.report["estimated"], run.report["warnings"]) == (0, False, [])
    assert run.report["recorded"] == run.report["totals"]["allocated"]["blocks"]


def test_process_is_restored(run: Run) -> None:
    assert not stubs(run.program.pid)
    until(lambda: Path(f"/proc/{run.program.pid}/stat").exists(), "the program")
    assert len(run.program.round()) == len(run.notes)
    assert os.path.exists(f"/proc/{run.program.pid}")
