"""Coverage-guided: the C kernel's loops over memory, by libFuzzer under sanitizers. usage: python tests/fuzz/kernel.py [SECONDS [RUNS]]"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLANG = "clang-19"


def main() -> int:
    seconds, runs = [*sys.argv[1:], "60", "-1"][:1] + [*sys.argv[2:], "-1"][:1]
    folder = ROOT / "build" / "fuzz" / "kernel"
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    program = folder / "fuzz"
    sources = [*map(str, sorted(ROOT.glob("common/kernel/*.c"))), str(ROOT / "tests/fuzz/kernel.c")]
    flags = ["-std=c11", "-g", "-O1", "-DFL_SOURCES=0", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([CLANG, *flags, "-o", str(program), *sources], check=True)
    limits = ["-max_len=20000", "-timeout=20", "-rss_limit_mb=2000", "-use_value_profile=1", "-seed=1"]
    command = [str(program), *limits, f"-max_total_time={seconds}", f"-runs={runs}", f"-artifact_prefix={folder}/", str(folder / "corpus")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
