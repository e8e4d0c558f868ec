"""`track` loses no event of threads that allocate at the same time, end, free blocks of other threads, or fork."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import building
import pytest
from tracking import JEMALLOC, by_line, read_result, recording, start_tracked

pytestmark = pytest.mark.platform("x86-64", "`count --inject`, `track`")
SITES = ("by_malloc", "by_realloc", "by_memalign")
program = building.fixture("tracked_threads.c", "-std=gnu11", "-O1", "-fno-builtin", "-pthread")


@pytest.mark.parametrize("preload", ["", pytest.param(JEMALLOC, marks=pytest.mark.matrix)], ids=["glibc", "jemalloc"])
def test_every_event_of_threads(preload: str, program: Path) -> None:
    """The report contains all calls of each site, and all remaining blocks."""
    with start_tracked([str(program)], preload) as running:
        working = recording(by_line(running.pid, "--json", "--until-full", "--limit", "0"), running.pid)
        notes = {note.site: note.size for note in running.round()}
        working.send_signal(signal.SIGINT)
        report = read_result(working)
        assert running.end() == 0
    calls: Counter[str] = Counter()
    left = 0
    for stack in report["stacks"]:
        names = [frame["function"] for frame in stack["frames"]]
        for site in SITES:
            if site in names:
                calls[site] += stack["allocated"]["blocks"]
                left += sum(stack[fate]["blocks"] for fate in ("held", "lost"))
        assert stack["allocated"]["blocks"] == sum(stack[fate]["blocks"] for fate in ("freed", "held", "lost"))
    assert {**calls, "all": left} == notes
    assert report["not_recorded"] == 0
