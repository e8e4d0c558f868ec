"""Stacks of CPython's tracemalloc are the allocation stacks of blocks, including lost blocks."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import mallocs_python
import pytest
import truth
from debuggers import run_cli
from mallocs_python import SUITES

import cores

REDUCED = "3.11"
PROGRAM = truth.PROGRAMS / "python_sites.py"


def site_of(frames: list[dict[str, Any]]) -> list[str]:
    return [f"{frame['file']}:{frame['line']}" for frame in frames]


@pytest.mark.parametrize(
    ("version", "picture", "allocator"),
    [
        pytest.param(
            version, picture, allocator, marks=() if (version, picture, allocator) == (REDUCED, "kernel", "") else pytest.mark.matrix
        )
        for version in SUITES
        for picture in ("live", "kernel")
        for allocator in ("", "debug", "malloc")
    ],
)
def test_every_block(tmp_path: Path, version: str, picture: str, allocator: str) -> None:
    """The stacks of the lost blocks, both objects and arrays, equal those of tracemalloc. The table of traces does not keep any block
    reachable. Stale words keep some blocks reachable, because neither Python nor glibc clears the last bytes of a block before it is used
    again."""
    python = mallocs_python.get(version)
    (headers,) = Path("/usr/include").glob("python3.*/Python.h")
    mallocs_python.extension(truth.PROGRAMS / "python_lose.c", tmp_path, (f"-I{headers.parent}",))
    options = {"PYTHONMALLOC": allocator, "MALLOC_PERTURB_": "165"} if allocator else {}
    environment = python.environment(tmp_path, **options)
    with cores.Running(python.command(str(PROGRAM)), tmp_path / "run", environment) as one:
        said = json.loads(one.output.splitlines()[0])
        where = ["--pid", str(one.pid)] if picture == "live" else [str(one.kernel_core())]
        rows = {
            int(row["address"], 16): row
            for row in map(json.loads, run_cli("blocks", "--limit", "0", "--json", *where).stdout.splitlines())
            if "address" in row
        }
        groups = json.loads(run_cli("find", "--by", "site", "--limit", "0", "--json", *where).stdout)["groups"]
        assert "find --by site" in json.loads(run_cli("find", "--json", *where).stdout)["next"]
        some = [[address, frames] for address, frames in (*said["held"][::70], *said["lists"][::70])]
        asked = [hex(address) for address, _ in some]
        answers = json.loads(run_cli("whatis", "--json", *asked, *where).stdout)["answers"]
    stacks = {group["site"]["number"]: site_of(group["site"]["frames"]) for group in groups if group["site"]}
    starts = sorted(rows)
    wrong, definite = [], 0
    for hidden, size, frames in said["lost"]:
        address = hidden ^ (1 << 64) - 1
        start = starts[bisect_right(starts, address) - 1]
        row = rows[start]
        assert address - start in ((16, 32) if allocator == "debug" and size != 300 else (0,))  # after the headers of the debug hooks
        definite += row["kind"] == "definite"
        if not row["site"] or row["size"] < size or stacks.get(row["site"], frames) != frames:
            wrong.append((size, frames, row, stacks.get(row["site"])))
    assert len(said["lost"]) == 2700 and not wrong, wrong[:3]
    assert definite > 1500  # if findleaks scanned the table, all blocks would be reachable
    for (address, frames), answer in zip(some, answers):
        assert [site_of(site["frames"]) for site in answer["sites"]] == [frames], hex(address)
    counts = {tuple(site_of(site["frames"])): site["live"] for answer in answers for site in answer["sites"]}
    for frames, count, size in said["sites"]:
        if tuple(frames) in counts:
            assert counts[tuple(frames)] == {"blocks": count, "bytes": size}
    assert len(counts) >= 2
