"""`triage --coredumpctl` on crashes that systemd-coredump has stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import systemd
import triaged

from cores import Running

LEAKY = Path(__file__).parents[1] / "programs" / "leaky.c"


@pytest.mark.matrix
def test_cores_of_systemd_coredump(tmp_path: Path) -> None:
    """Cores of two programs are read; the name of one of them is escaped. A message says that the core of a third program is missing."""
    for name in ("leaky", "a b.c"):
        subprocess.run(["gcc", "-O0", "-o", tmp_path / name, LEAKY], check=True)
    running = [Running([str(tmp_path / name), "100"], tmp_path / f"run{at}") for at, name in enumerate(("leaky", "a b.c", "leaky"))]
    try:
        crashes = [(one.pid, one.gcore()) for one in running]
        gone = running[2].pid
        triage = (
            f"rm {systemd.COREDUMPS}/core.*.{gone}.*; coredumpctl list >&2; exec {sys.executable} -m findleaks triage --json --coredumpctl"
        )
        done = systemd.run_after_crashes(crashes, ["sh", "-c", triage])
    finally:
        for one in running:
            one.__exit__(None, None, None)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("present") == 2 and done.stderr.count("missing") == 1
    rows, last = triaged.parse_rows(done.stdout)
    assert sorted(row["program"] for row in rows.values()) == ["a b.c", "leaky"]
    for core, row in rows.items():
        assert core.endswith(".zst") and row["status"] == "ok" and row["lost_blocks"] == 65, row
        assert f".{int(row['time'])}000000." in core
    assert last["warnings"] == ["coredumpctl lists 1 more crashes whose cores cannot be read: 1 missing"]
