"""Run `verdict` on the program verdict.c, and measure how much memory the program itself gives back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import building
from debuggers import run_cli

from cores import PATIENCE, Running, all_sleep


def build(folder: Path) -> Path:
    """Compile verdict.c into `folder`."""
    return building.compile_program(folder, "verdict.c", "-O1", "-g", "-pthread", "-ldl")


def verdict(*target: str) -> dict[str, Any]:
    """Return the JSON of `verdict`, which must end with status 0."""
    done = run_cli("verdict", "--json", *target)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    assert sum(share["bytes"] for share in found["shares"]) == (found["resident"] or found["mapped"])
    return found


def finding(found: dict[str, Any], sort: str) -> dict[str, Any]:
    """Return the only finding of this sort."""
    (one,) = [each for each in found["findings"] if each["finding"] == sort]
    made: dict[str, Any] = one
    return made


def sorts(found: dict[str, Any]) -> list[str]:
    """Return the sorts of the findings, in order."""
    return [each["finding"] for each in found["findings"]]


def share(found: dict[str, Any], sort: str, of: str = "") -> int:
    """Return the bytes of all shares of this sort, for the allocator whose name begins with `of` ("": all)."""
    return sum(each["bytes"] for each in found["shares"] if each["share"] == sort and (each["of"] or "").startswith(of))


def send_signal(running: Running, number: signal.Signals) -> list[str]:
    """Send a signal. After all threads of the program sleep again, return the words of the line that it printed."""
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
    """Return by how many bytes the program's anonymous resident size falls when it gives memory back (SIGUSR1)."""
    before, after = send_signal(running, signal.SIGUSR1)
    return (int(before) - int(after)) << 10


def resident(pid: int) -> int:
    """Return the process's resident bytes, as the kernel counts them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Rss in smaps_rollup")


def anonymous(pid: int) -> int:
    """Return the process's anonymous resident bytes, as the kernel counts them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Anonymous in smaps_rollup")


def near(one: float, other: float, part: float) -> bool:
    """Return whether two numbers differ by at most this fraction of the second number."""
    return abs(one - other) <= part * abs(other)


def running(program: Path, folder: Path, words: Sequence[object], **environment: str) -> Running:
    """Start verdict.c, and wait until it is ready."""
    return Running([str(program), *map(str, words)], folder, {**os.environ, **environment})
