"""`diff` of two processes of one program reports that they differ, and suggests no command for a process that has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from debuggers import ROOT, findleaks

from cores import PATIENCE, Running


def test_two_runs_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "combined"
    subprocess.run(["gcc", "-O1", "-g", "-o", str(program), str(ROOT / "tests/programs/combined.c")], check=True)
    files = []
    for name, held in (("one", 4), ("two", 24)):
        files.append(str(tmp_path / f"{name}.snapshot"))
        with Running([str(program), "0", str(held), "0", "0"], tmp_path / name) as run:
            findleaks("snapshot", "-o", files[-1], "--pid", str(run.pid))
            live = findleaks("diff", *files) if name == "two" else ""
            assert f"--pid {run.pid}" in live or name == "one"  # the process still runs
            os.kill(run.pid, signal.SIGKILL)
            limit = time.monotonic() + PATIENCE
            while Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < limit:
                time.sleep(0.01)
            text = findleaks("diff", *files) if name == "two" else ""  # the process has ended, and its parent has not waited for it
            assert "--pid" not in text
    first = text.splitlines()[0]
    assert first.startswith("several processes of combined")
    assert " an hour" not in text and "AN HOUR" not in text
    answer = json.loads(findleaks("diff", "--json", *files))
    assert answer["several_processes"].startswith("pid ")
    assert answer["seconds"] is None
    assert all(row["per_hour"] is None for row in answer["grown"])
    assert answer["grown"][0]["name"].startswith("g_list")
