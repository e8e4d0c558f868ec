"""findleaks lists the frames of suspended greenlets that gr_frame returns, and names the functions whose variables retain memory."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import debuggers
import greenlets
import pytest
import truth
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
@pytest.mark.parametrize("version", mark_matrix_except(greenlets.SUITES.keys(), "3.11"))
def test_suspended_greenlets(version: str, picture: str, tmp_path: Path) -> None:
    python, program = PYTHONS[version](), str(truth.PROGRAMS / "python_suspended_greenlets.py")
    modules, more = greenlets.get_environment(version)
    with cores.Running(python.command(program), tmp_path, python.environment(modules, **more)) as one:
        chains = json.loads(one.output.splitlines()[0])
        where = ("--pid", str(one.pid)) if picture == "live" else (str(one.kernel_core()),)
        found = json.loads(debuggers.findleaks("stacks", "--no-lines", "--json", *where))
        findings = json.loads(debuggers.findleaks("verdict", "--json", *where))["findings"]
        roots = json.loads(debuggers.findleaks("roots", "--json", *where))["roots"]
        shown = debuggers.findleaks("stacks", "-c", "iterate", *where)
    assert not [one for one in found["warnings"] if "frames" in one]
    # The greenlet that prints is being executed, so that its frames are those of the thread.
    (thread,) = found["stacks"]
    assert [one["function"].rpartition(".")[2] for one in thread["frames"] if one.get("kind")] == ["report", "work"]
    read = Counter[str]()
    for stack in found["user_stacks"]:
        assert (stack["kind"], stack["state"], stack["numbers"]) == ("greenlet", "suspended", [])
        chain = [[frame["file"], frame["line"], frame["function"].rpartition(".")[2]] for frame in stack["frames"]]
        read[json.dumps(chain)] += stack["count"]
    assert len(chains) == 1157 and max(map(len, chains)) == 5002 and read == Counter(map(json.dumps, chains))
    assert "30 of 1,157 greenlets of CPython\n\n  30 greenlets, suspended\n    pause at" in shown

    (finding,) = [each for each in findings if each["finding"] == "suspended-greenlets"]
    assert "1,100 greenlets are suspended in pause (programs/python_suspended_greenlets.py:" in finding["text"]
    assert (finding["evidence"]["greenlets"], finding["evidence"]["outermost"]) == (1100, "handle")
    if version != "3.9":  # Up to Python 3.10, frames are objects.
        ending = " (CPython frames, suspended greenlets)"
        retained = {root["name"]: root["retained_bytes"] for root in roots}
        # Each greenlet has 4 objects of 1,500 bytes and 8 of 600 bytes. Words on the saved native stacks refer to some of them, too.
        assert 1100 * 4 * 1500 * 0.6 < retained["handle" + ending] < 1100 * 4 * 1700
        assert 1100 * 8 * 600 * 0.6 < retained["read" + ending] < 1100 * 8 * 900
