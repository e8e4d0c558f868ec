"""What `verdict` says of a program, and what the program itself says when it gives memory back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import building
from debuggers import ran

from cores import PATIENCE, Running, all_sleep


def build(folder: Path) -> Path:
    """verdict.c, compiled into `folder`."""
    return building.compiled(folder, "verdict.c", "-O1", "-g", "-pthread", "-ldl")


def verdict(*target: str) -> dict[str, Any]:
    """The JSON of `verdict`, which ends with status 0."""
    done = ran("verdict", "--json", *target)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(share["bytes"] for share in found["shares"]) == (found["resident"] or found["mapped"])
    return found


def finding(found: dict[str, Any], sort: str) -> dict[str, Any]:
    """The one finding of this sort."""
    (one,) = [each for each in found["findings"] if each["finding"] == sort]
    made: dict[str, Any] = one
    return made


def sorts(found: dict[str, Any]) -> list[str]:
    """What was found, in order."""
    return [each["finding"] for each in found["findings"]]


def share(found: dict[str, Any], sort: str, of: str = "") -> int:
    """Bytes of the shares of this sort, of the allocator whose name begins so."""
    return sum(each["bytes"] for each in found["shares"] if each["share"] == sort and (each["of"] or "").startswith(of))


def reported(running: Running, number: signal.Signals) -> list[str]:
    """Send a signal. Return the words that the program then prints on a line, after all its threads sleep again."""
    out = running.folder / "stdout"
    before = out.read_text()
    os.kill(running.pid, number)
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        more = out.read_text()[len(before) :]
        if more.endswith("\n") and all_sleep(running.pid):
            return more.split()
        time.sleep(0.02)
    raise RuntimeError(f"{running.folder}: no answer to {number.name}")


def given_back(running: Running) -> int:
    """Bytes by which its anonymous resident size falls when it gives memory back (SIGUSR1)."""
    before, after = reported(running, signal.SIGUSR1)
    return (int(before) - int(after)) << 10


def resident(pid: int) -> int:
    """The kernel's own sum."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Rss in smaps_rollup")


def anonymous(pid: int) -> int:
    """The kernel's sum of the anonymous pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Anonymous in smaps_rollup")


def near(one: float, other: float, part: float) -> bool:
    """Whether they differ by no more than this part of the second."""
    return abs(one - other) <= part * abs(other)


def running(program: Path, folder: Path, words: Sequence[object], **environment: str) -> Running:
    """verdict.c, ready."""
    return Running([str(program), *map(str, words)], folder, {**os.environ, **environment})
