"""`track --mmap` shows the stacks that made mappings that still exist."""

from __future__ import annotations

import signal
from pathlib import Path

import building
import pytest
from debuggers import PATIENCE
from tracking import by_gdb, by_line, finished, recording, tracked

pytestmark = pytest.mark.platform("x86-64", "`count --inject`, `track`")
PART = 64 << 10


program = building.fixture("tracked_maps.c", "-std=gnu11", "-O1")


@pytest.mark.parametrize("door", [by_line, by_gdb])
def test_stacks_of_mappings(program: Path, door: object) -> None:
    assert callable(door)
    with tracked([str(program)]) as running:
        working = recording(door(running.pid, "--json", "--mmap"), running.pid)
        notes = running.round()
        working.send_signal(signal.SIGINT)
        report = finished(working)
        assert running.end() == 0
    assert report["what"] == "mappings"
    seen = {}
    for stack in report["stacks"]:
        names = [frame["function"] for frame in stack["frames"]]
        site = next(name for name in ("lose", "keep", "drop", "align", "grow", "main") if name in names)
        for fate in ("lost", "held", "freed"):
            if stack[fate]["blocks"]:
                seen[site, names[0].strip("_"), fate] = (stack[fate]["blocks"], stack[fate]["bytes"])
    lost = seen.pop(("lose", "mmap", "lost"))
    assert lost == (20, 20 * 4 * PART)
    assert seen == {
        ("keep", "mmap", "held"): (20, 20 * 3 * PART),
        ("drop", "mmap", "freed"): (20, 20 * 2 * PART),
        ("align", "mmap", "held"): (20, 20 * 2 * PART),
        ("grow", "mmap", "freed"): (20, 20 * PART),
        ("grow", "mremap", "held"): (20, 20 * 5 * PART),
        ("main", "sbrk", "held"): (1, PART),
    }
    examples = {int(address, 16) for stack in report["stacks"] if stack["lost"]["blocks"] for address in stack["examples"]}
    assert examples and examples <= {note.address for note in notes if note.fate == "lost"}


def test_text(program: Path) -> None:
    with tracked([str(program)]) as running:
        working = recording(by_line(running.pid, "--mmap", "--size", "256k"), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        output, errors = working.communicate(timeout=PATIENCE)
    assert working.returncode == 0, errors
    lines = output.splitlines()
    assert lines[0] == "  20 mappings (5.0 MiB) leaked"
    assert "20 mappings (5.0 MiB) mapped in" in output
    assert "20 mappings (5.0 MiB) leaked, 0 mappings (0 B) still mapped, 0 mappings (0 B) unmapped" in output
