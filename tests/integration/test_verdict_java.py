"""Native memory that only objects of a JVM's heap hold is a finding, with what is resident of it."""

from __future__ import annotations

from pathlib import Path

import jvms
from debuggers import ROOT
from verdicts import finding, verdict

from cores import Running

COUNT = 300
EACH = 200_000  # zlib's deflate takes 268 KB: zconf.h, MEM_LEVEL and window bits by default
FLAGS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m")


def test_held_from_java(tmp_path: Path) -> None:
    jvms.compile_java(ROOT / "tests/programs/HeldDeflaters.java", tmp_path)
    with Running(["java", *FLAGS, "-cp", str(tmp_path), "HeldDeflaters", str(COUNT)], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
        core = run.kernel_core()
    for one in (found, verdict(str(core))):
        held = finding(one, "held-from-managed-heap")
        assert held["evidence"]["root"] == "JVM's Java heap"
        assert COUNT * EACH < held["bytes"] < COUNT * 300_000
        assert held["evidence"]["blocks"] >= 5 * COUNT  # deflate's state, window, two tables, and what is pending
        assert held["next"][0] == "runtime"
        (share,) = [share for share in one["shares"] if share["share"] == "in-use"]
        assert held["bytes"] > share["bytes"]  # most of a window was never written to
        assert held["resident_bytes"] <= share["bytes"]
        assert "of it resident) of native memory" in held["text"]
        assert one["findings"][0] == held
