"""Measure `triage` on 1,000 mixed cores, with one process and with two, and when it is killed ten times and resumed.

python tests/bench/triage.py [CORES: 1000]
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "integration")]

import triaged  # noqa: E402
from test_triage import create_files  # noqa: E402


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        base = Path(name)
        programs = [triaged.build(base / "O0", "-O0"), triaged.build(base / "O2", "-O2")]
        cores = [triaged.core(program, base / f"{program.parent.name}-{seed}", seed).path for program in programs for seed in range(3)]
        create_files(base / "mixed", cores, count)
        run(["--json", "-j", "2", base / "mixed" / "below" / "deeper"])  # afterwards the files are in memory
        walls = []
        for jobs in (1, 2):
            wall, cpu = run(["--json", "-j", str(jobs), "-o", base / f"{jobs}.sqlite", base / "mixed"])
            walls.append(wall)
            print(f"{count} cores, -j {jobs}: {wall:.1f} s, {1000 * wall / count:.0f} ms a core; {cpu:.1f} s of CPU", flush=True)
        print(f"two processes: {walls[0] / walls[1]:.2f} times as fast as one")
        chance = random.Random(1)
        for _ in range(10):
            run_killed(["--json", "--resume", "-o", base / "killed.sqlite", base / "mixed"], chance.uniform(0.5, walls[1] / 10))
        run(["--json", "--resume", "-o", base / "killed.sqlite", base / "mixed"])
        same = triaged.tables(base / "killed.sqlite") == triaged.tables(base / "2.sqlite") == triaged.tables(base / "1.sqlite")
        print(f"killed ten times and resumed: {'the same table' if same else 'ANOTHER TABLE'}")


def run(words: list[object]) -> tuple[float, float]:
    """Return wall-clock seconds, and CPU seconds of all processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "findleaks", "triage", *map(str, words)], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_killed(words: list[object], seconds: float) -> None:
    with subprocess.Popen([sys.executable, "-m", "findleaks", "triage", *map(str, words)], stdout=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()


if __name__ == "__main__":
    main()
