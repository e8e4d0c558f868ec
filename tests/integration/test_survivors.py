"""Survivors, blocks that stay in use: the program prints the addresses of its blocks before each sample. Samples are live snapshots and
cores."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Callable

import building
import pytest

from findleaks import cli
from findleaks.history.sample import take_sample
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.history.survivors import Survival, survival
from findleaks.session import Session
from findleaks.target.copied import attach

KEEP, CHURN, CACHE, LEAK = 104, 200, 312, 72
Block = tuple[int, int]


program = building.fixture("stays.c", "-O1")


@contextmanager
def rounds(program: Path, folder: Path, blocks: int, count: int) -> Iterator[tuple[int, Callable[[], set[Block]]]]:
    """Return the pid of the program, and a function that runs the program to the next round and returns its blocks."""
    truth = folder / "truth"
    with subprocess.Popen([program, str(blocks), str(count), truth], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        number = 0

        def on() -> set[Block]:
            nonlocal number
            assert running.stdin is not None
            assert running.stdout is not None
            if number:
                running.stdin.write("\n")
                running.stdin.flush()
            assert running.stdout.readline() == f"round {number}\n"
            lines = Path(f"{truth}.{number}").read_text().splitlines()
            number += 1
            return {(int(address, 16), int(size)) for size, _, address in (line.partition(" ") for line in lines)}

        try:
            yield running.pid, on
        finally:
            running.kill()


def compute_truth(samples: list[set[Block]]) -> dict[str, Counter[int]]:
    """Return the counts by size, computed from the definition."""
    stayed = set.intersection(*samples)
    since, kept = Counter[int](), Counter[int]()
    for at in range(1, len(samples) - 1):
        new = samples[at] - samples[at - 1]
        since.update(size for _, size in new)
        kept.update(size for _, size in new.intersection(*samples[at + 1 :]))
    return {
        "first": Counter(size for _, size in samples[0]),
        "first stayed": Counter(size for _, size in stayed),
        "since": since,
        "since stayed": kept,
        "newest": Counter(size for _, size in samples[-1] - samples[-2]),
    }


def findleaks(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_live_snapshots_and_a_core(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For few blocks, counts by size are exact. New blocks of the leak survive, but blocks that are freed and allocated again do not
    survive."""
    samples, files = [], []
    with rounds(program, tmp_path, 500, 4) as (pid, on):
        for number in range(4):
            samples.append(on())
            files.append(tmp_path / f"{number}.snapshot")
            if number == 2:
                subprocess.run(["gcore", "-o", tmp_path / "core", str(pid)], check=True, capture_output=True)
                files[-1] = tmp_path / f"core.{pid}"
            else:
                findleaks(capsys, "snapshot", "--pid", pid, "-o", files[-1])
        known = compute_truth(samples)
        with rounds(program, tmp_path, 500, 1) as (other, at_first):
            at_first()
            answer = json.loads(findleaks(capsys, "diff", files[0], "--pid", other, "--json"))
            assert answer["survivors"] is None
            assert f"several processes: pid {pid}, {other}" in answer["survivors_unknown"]
    found: dict[str, Any] = json.loads(findleaks(capsys, "diff", *files, "--json"))
    assert found["survivors_unknown"] is None
    assert found["survivors"]["sampled"] is False
    by_size = {one["size"]: one for one in found["survivors"]["sizes"]}
    for size in (KEEP, CHURN, CACHE, LEAK):
        one = by_size[size]
        assert one["first"]["made"] == {"blocks": known["first"][size], "bytes": known["first"][size] * size}
        assert one["first"]["stayed"]["blocks"] == known["first stayed"][size]
        assert (one["since"]["made"]["blocks"], one["since"]["stayed"]["blocks"]) == (known["since"][size], known["since stayed"][size])
        assert one["newest"]["blocks"] == known["newest"][size]
    assert by_size[LEAK]["since"]["part"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert (known["since"][CHURN], by_size[CHURN]["since"]["stayed"]["blocks"]) == (1000, 0)
    text = findleaks(capsys, "diff", *files, "--by", "survivors").splitlines()
    assert any(line.split() == ["72", "B", "500", "all", "1,000", "all", "500"] for line in text)
    assert any(line.split()[:6] == ["200", "B", "500", "none", "1,000", "none"] for line in text)


def test_many_blocks(program: Path, tmp_path: Path) -> None:
    """For 200,000 blocks, counts are estimates. They are within three times the stated error, which random variation does not exceed."""
    samples, snapshots = [], []
    with rounds(program, tmp_path, 50_000, 3) as (pid, on):
        for number in range(3):
            samples.append(on())
            with closing(Session(attach(pid))) as session:
                identity = Identity("stays", "", pid, 1)
                snapshots.append(Snapshot(str(number), Clock(number), identity, [], sample=take_sample(session)))
    known, found = compute_truth(samples), survival(snapshots)
    assert isinstance(found, Survival)
    assert found.level >= 4
    for size in (KEEP, CHURN, CACHE, LEAK):
        one = found.of(size)
        assert one is not None
        assert one.since is not None
        cohorts = {"first": one.first.made, "first stayed": one.first.stayed, "since": one.since.made, "since stayed": one.since.stayed}
        for word, (blocks, held) in {**cohorts, "newest": one.newest}.items():
            number = known[word][size]
            assert blocks.value - 3 * (blocks.value - blocks.low) <= number <= blocks.value + 3 * (blocks.high - blocks.value), (size, word)
            assert held.value == blocks.value * size
    leak, churn = found.of(LEAK), found.of(CHURN)
    assert leak is not None and churn is not None
    assert leak.since is not None and leak.since.part is not None and leak.since.part.low > 0.99
    assert churn.since is not None and churn.since.part is not None and churn.since.part.high < 0.01
