"""`track --mmap` shows the stacks that created mappings that still exist."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import building
import pytest
from debuggers import PATIENCE
from tracking import by_gdb, by_line, read_result, recording, start_tracked

pytestmark = pytest.mark.platform("x86-64", "`count --inject`, `track`")
PART = 64 << 10


program = building.fixture("tracked_maps.c", "-std=gnu11", "-O1")
SITES = ("forget_the_size", "map_again", "leave_behind", "unmap_both")
TURNS = 60  # same value as in tracked_remaps.c; more mappings than `track` records while the probe records all sizes


@pytest.mark.parametrize("front_end", [by_line, by_gdb])
def test_stacks_of_mappings(program: Path, front_end: object) -> None:
    assert callable(front_end)
    with start_tracked([str(program)]) as running:
        working = recording(front_end(running.pid, "--json", "--mmap"), running.pid)
        notes = running.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
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
    with start_tracked([str(program)]) as running:
        working = recording(by_line(running.pid, "--mmap", "--size", "256k"), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        output, errors = working.communicate(timeout=PATIENCE)
    assert working.returncode == 0, errors
    lines = output.splitlines()
    assert lines[0] == "  20 mappings (5.0 MiB) leaked"
    assert "20 mappings (5.0 MiB) mapped in" in output
    assert "20 mappings (5.0 MiB) leaked, 0 mappings (0 B) still mapped, 0 mappings (0 B) unmapped" in output


@pytest.mark.parametrize(("size", "parts"), [("", None), ("256k", 4)], ids=["all sizes", "one size"])
def test_calls_that_depend_on_more_than_the_address(size: str, parts: int | None, tmp_path: Path) -> None:
    """munmap of 0 bytes fails. mremap may keep the old mapping. One munmap may remove several mappings, and a mapping of another size may
    replace them."""
    with start_tracked([str(building.compile_program(tmp_path, "tracked_remaps.c", "-std=gnu11", "-O1"))]) as running:
        working = recording(by_line(running.pid, "--json", "--mmap", *(["--size", size] if size else [])), running.pid)
        running.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
        assert running.end() == 0
    seen: Counter[tuple[str, str, str, int]] = Counter()
    for stack in report["stacks"]:
        names = [frame["function"] for frame in stack["frames"]]
        site = next(name for name in names if name in SITES)
        for fate in ("lost", "held", "freed"):
            blocks = stack[fate]["blocks"]
            if blocks:
                seen[site, names[0].strip("_"), fate, stack[fate]["bytes"] // blocks // PART] += blocks
    expected = {
        ("forget_the_size", "mmap", "held", 3): TURNS,
        ("map_again", "mmap", "held", 1): TURNS,
        ("map_again", "mremap", "held", 1): TURNS,
        ("leave_behind", "mmap", "held", 2): TURNS,
        ("leave_behind", "mremap", "held", 2): TURNS,
        ("unmap_both", "mmap", "freed", 9): TURNS,
        ("unmap_both", "mmap", "freed", 1): TURNS,
        ("unmap_both", "mmap", "freed", 4): TURNS,
        ("unmap_both", "mmap", "held", 2): TURNS,
    }
    assert seen == {key: count for key, count in expected.items() if parts in (None, key[3])}
