"""Files with the stacks of `track` contain the same figures as the JSON of the same run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import profilefiles
from debuggers import run_cli
from tracking import build, by_line, read_result, recording, start_tracked

FATES = ("lost", "held", "freed", "allocated")


def test_tracked_stacks(tmp_path: Path) -> None:
    with start_tracked([str(build(tmp_path))], "") as program:
        program.round()
        working = recording(by_line(program.pid, "--json", "-o", str(tmp_path / "a.pb.gz")), program.pid)
        program.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
    assert report["written"]["format"] == "pprof" and report["warnings"] == []
    names, samples, _ = profilefiles.pprof_samples(tmp_path / "a.pb.gz")
    assert names == [f"{fate}_{what}" for fate in FATES for what in ("blocks/count", "bytes/bytes")]
    expected: dict[tuple[str, ...], tuple[int, ...]] = {}
    for stack in report["stacks"]:
        frames = [frame["function"] or f"{frame['module']}+{frame['offset']:#x}" for frame in reversed(stack["frames"])]
        key = tuple(name.partition("(")[0] for name in frames)
        values = tuple(stack[fate][what] for fate in FATES for what in ("blocks", "bytes"))
        expected[key] = tuple(a + b for a, b in zip(expected.get(key, (0,) * 8), values))
    assert samples == expected and len(expected) >= 14
    top = profilefiles.pprof(tmp_path / "a.pb.gz", "-top", "-cum", "-unit=B")
    assert "Type: lost_bytes" in top


def test_core_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    core = tmp_path / "sample.core.gz"
    subprocess.run(["cp", Path(__file__).parents[2] / "cores" / "sample.core.gz", core], check=True)
    done = run_cli("track", "-o", str(tmp_path / "a.pb.gz"), str(core))
    assert done.returncode == 2 and "needs a running process" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [core.name]
