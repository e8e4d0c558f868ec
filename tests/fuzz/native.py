"""Coverage-guided: the C engine's loops over memory, by libFuzzer under sanitizers, for each size and byte order of words.

usage: python tests/fuzz/native.py [SECONDS [RUNS]]     SECONDS: for all four together; RUNS: of each
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from findleaks.engine.native.sources import VARIANTS

ROOT = Path(__file__).resolve().parents[2]
CLANG = "clang-19"
FLAGS = ("-std=c11", "-g", "-O1", "-DFL_SOURCES=0", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
LIMITS = ("-max_len=20000", "-timeout=20", "-rss_limit_mb=2000", "-use_value_profile=1", "-seed=1")


def build(folder: Path) -> list[Path]:
    """The harness for each kind of words, in `folder`."""
    sources = [*map(str, sorted(ROOT.glob("common/native/*.c"))), str(ROOT / "tests/fuzz/native.c")]
    warnings = ("-Wall", "-Wextra", "-Werror")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for (word, order), name in VARIANTS.items():
        program = folder / f"fuzz{name}"
        words = (f"-DWORD={word}u", f"-DBIG={int(order == 'big')}")
        made.append((program, subprocess.Popen([CLANG, *FLAGS, *warnings, *words, "-o", str(program), *sources])))
    if sum(abs(process.wait()) for _, process in made):  # of all, so that none is left running
        raise SystemExit("the harness does not compile")
    return [program for program, _ in made]


def run(program: Path, seconds: int, runs: int) -> int:
    """The exit status of libFuzzer; what fails is kept beside the program."""
    corpus = program.with_name(f"corpus-{program.name}")
    corpus.mkdir(exist_ok=True)
    limits = [*LIMITS, f"-max_total_time={seconds}", f"-runs={runs}", f"-artifact_prefix={program.parent}/{program.name}-"]
    return subprocess.run([str(program), *limits, str(corpus)], check=False).returncode


def main() -> int:
    seconds, runs = map(int, [*sys.argv[1:], *("60", "-1")[len(sys.argv) - 1 :]])
    programs = build(ROOT / "build" / "fuzz" / "native")
    return max([run(program, max(1, seconds // len(programs)), runs) for program in programs])


if __name__ == "__main__":
    sys.exit(main())
