"""`verdict` divides the live objects of several isolates by thread: the sizes are those that each thread prints about itself."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import nodes
import pytest
import truth
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "v8_workers.js"
TOTAL = 40_000
CLOSE = 0.02
"""The largest relative difference between V8's used bytes, compared between two heaps, and the bytes of live objects."""


@pytest.mark.parametrize("version", mark_matrix_except(nodes.WITH_WORKERS, nodes.NEWEST))
def test_heaps_of_workers(tmp_path: Path, version: str) -> None:
    command = [nodes.get(version), "--expose-gc", *nodes.STEADY, str(PROGRAM), str(TOTAL)]
    with cores.Running(command, tmp_path) as running:
        made = json.loads(running.output.splitlines()[0])
        (line,) = debuggers.objects(debuggers.findleaks("verdict", "--json", "--pid", str(running.pid)))
    findings = json.loads(line)["findings"]
    (found,) = [one for one in findings if one["finding"] == "large-v8-heap"]
    heaps = found["evidence"]["heaps"]
    assert [one["worker"] for one in heaps].count(True) == 3 and len(heaps) == 4
    many, few, _ = made["workers"]
    assert heaps[0]["script"] == many["script"] == str(PROGRAM)
    assert heaps[1]["script"] == str(PROGRAM) and heaps[0]["bytes"] < many["used"] and heaps[1]["bytes"] < few["used"]
    # V8's count of each heap includes about this number of bytes that are not live objects.
    assert heaps[0]["bytes"] - heaps[1]["bytes"] == pytest.approx(many["used"] - few["used"], rel=CLOSE)
    (own,) = [one for one in heaps if not one["worker"]]
    assert own["thread"] == "main thread" and 0.6 * made["main"] < own["bytes"] < made["main"]
    assert {one["script"] for one in heaps if one["worker"]} == {str(PROGRAM), ""}  # the last worker has no file
    assert found["text"].startswith("V8's 4 heaps (3 of them of workers) have ")
    place = f"is that of {heaps[0]['thread']}, a worker ({PROGRAM}). Live objects by thread: 2 workers of {PROGRAM}: "
    assert place in found["cause"]
    assert f"variable cache ({PROGRAM})" in found["cause"]
    assert found["try"][0].startswith("end workers")
