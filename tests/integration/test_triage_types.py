"""`triage` names leaks by the types that debug information gives, and finds them in several cores."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import commandline

import cores

PROGRAM = Path(__file__).resolve().parent.parent / "programs" / "typed_truth.c"


def test_signatures_have_types(tmp_path: Path) -> None:
    program = tmp_path / "typed_truth"
    subprocess.run(["gcc", "-g", "-O1", "-o", program, PROGRAM], check=True)
    folder = tmp_path / "cores"
    folder.mkdir()
    for seed in ("1", "2"):
        with cores.Running([str(program), "2000", seed], tmp_path / seed) as running:
            running.gcore().rename(folder / f"core.{seed}")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    groups: dict[str, dict[str, int]] = {}
    for option in ("--debug-types", "--no-debug-types"):
        done = commandline.run(["triage", option, "--json", str(folder)], environment)
        assert done.returncode == 0, done.stderr
        last = json.loads(done.stdout.splitlines()[-1])
        groups[option] = {one["what"]: one["cores"] for one in last["groups"]}
    typed = {what: count for what, count in groups["--debug-types"].items() if what.startswith("struct ")}
    assert "struct table" in " ".join(typed) and len(typed) >= 3, groups
    assert max(typed.values()) == 2, typed
    assert not any(what.startswith("struct ") for what in groups["--no-debug-types"]), groups
