"""`roots` names the Procs, Methods, finalizers, threads and fibers that retain native memory of Ruby's objects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "ruby_retained.rb"
COUNT, BYTES = 3000, 2000
HOLDERS = {
    r"\$procs": "procs",
    r"\$methods": "methods",
    r"\$all": "global",
    r"finalizers of objects of Object": "finalizers",
    r"local variable or argument of (Object#)?in_thread \(.*ruby_retained\.rb:\d+\)": "thread",
    r"local variable or argument of (Object#)?in_fiber \(.*ruby_retained\.rb:\d+\)": "fiber",
}


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_holders_of_texts(version: str, tmp_path: Path) -> None:
    ruby = rubies.get(version)
    with cores.Running([*ruby.words, str(PROGRAM)], tmp_path, dict(ruby.environment)) as program:
        roots = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", "--pid", str(program.pid)))["roots"]
    for pattern, kind in HOLDERS.items():
        found = [one for one in roots if re.fullmatch(pattern + r" \(Ruby( variable)?\)", one["name"])]
        assert len(found) == 1, (kind, [one["name"] for one in roots][:20])
        assert COUNT * BYTES < found[0]["retained_bytes"] < COUNT * (BYTES + 600), (kind, found[0]["retained_bytes"])
        assert found[0]["retained_blocks"] >= COUNT
