"""Blocks whose pointers are hidden: a new user reads one output about them. Blocks that the program can still reach are not reported as
leaked, or a warning gives the reason. Blocks that it cannot reach are reported as leaked."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import building
import pytest
import truth
from transcripts import follow

import cores

HELD, LOST = r"Nothing leaked: 0 blocks definitely lost", r"Leaked: 11 KiB in 50 blocks .* 50 × 216 B, e\.g\. \"LOST\""
PLACES = {
    "closed": LOST,
    "gs": HELD,
    "no-access": HELD,
    **dict.fromkeys(("memfd", "shared-file", "private-file", "read-only", "not-dumped"), HELD),
    **dict.fromkeys(("shm", "segment", "ymm", "zmm"), HELD),
    "events": HELD + r".* blocks of 200 B are referenced only by unaligned pointers",
    **dict.fromkeys(("keys", "thread-keys", "mmx", "on-exit", "malloc-stacks", "mapped-stacks"), HELD),
    **dict.fromkeys(("plain", "ended-keys"), LOST),
}
"""By kind of hidden_places.c. The first three run in each test run."""

DISGUISED = {
    "low": r"Leaked: 6\.2 KiB in 40 blocks",  # of another kind; pointers with low bits set are references like any other pointers
    "nan": "referenced only by tagged pointers",
    "shifted": "referenced only by shifted pointers",
    "compressed": "referenced only by compressed pointers",
    "packed": "referenced only by unaligned pointers",
    "halves": "referenced only by unaligned pointers",
    "xor": "referenced only by XOR",
}
"""By kind of disguised.c."""

KERNEL: dict[str, tuple[Sequence[str], str]] = {
    "unread_data.c": (("-lrt",), r"Leaked: 12 KiB in 40 blocks"),
    "kernel_held.c": (("-pthread", "-lrt"), r"10 leaked blocks .*1 io_uring descriptor.*Leaked: 2\.0 KiB in 10 blocks"),
}
"""These programs count two sets as lost: EACH blocks that the program simply leaks, and EACH blocks whose pointer the kernel dropped."""


def answer(command: Sequence[str], folder: Path) -> str:
    with cores.Running(command, folder / "run") as run:
        return follow(["--pid", str(run.pid)])


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if at < 3 else pytest.mark.matrix) for at, kind in enumerate(PLACES)])
def test_places(kind: str, tmp_path: Path) -> None:
    program = building.compile_program(tmp_path, "hidden_places.c", "-O1", "-pthread")
    plugin = tmp_path / "plugin.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-DPLUGIN", "-o", plugin, truth.PROGRAMS / "hidden_places.c"], check=True)
    text = answer([str(program), kind, str(tmp_path / "scratch"), str(plugin)], tmp_path)
    assert re.search(PLACES[kind], text), text


@pytest.mark.matrix
def test_a_parent_that_waits_in_vfork(tmp_path: Path) -> None:
    """The parent sleeps uninterruptibly, and its child uses the same memory."""
    program = building.compile_program(tmp_path, "hidden_places.c", "-O1", "-pthread")
    with subprocess.Popen([str(program), "vfork", "", ""], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
            text = follow(["--pid", str(parent.pid)])
        finally:
            parent.kill()
    assert "Nothing leaked in what could be read" in text and "1 of 1 threads sleep uninterruptibly" in text, text


@pytest.mark.matrix
@pytest.mark.parametrize("kind", DISGUISED)
def test_disguised_pointers(kind: str, tmp_path: Path) -> None:
    program = building.compile_program(tmp_path, "disguised.c", "-O1")
    text = answer([str(program), kind, "400"], tmp_path)
    assert re.search(DISGUISED[kind], text), text


@pytest.mark.matrix
@pytest.mark.parametrize("source", KERNEL)
def test_pointers_in_the_kernel(source: str, tmp_path: Path) -> None:
    options, wanted = KERNEL[source]
    text = answer([str(building.compile_program(tmp_path, source, "-O1", *options))], tmp_path)
    assert re.search(wanted, text), text


@pytest.mark.matrix
def test_signal_stacks(tmp_path: Path) -> None:
    program = building.compile_program(tmp_path, "signal_stacks.c", "-O1", "-pthread")
    text = answer([str(program), "12", "0", "odd"], tmp_path)
    assert "13 leaked blocks (508 KiB) may be alternate signal stacks" in text, text
