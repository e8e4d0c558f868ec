"""Coverage-guided fuzzing of the C engine's loops over memory, with libFuzzer under sanitizers, for each word size and byte order.

usage: python tests/fuzz/native.py [SECONDS [RUNS]]     SECONDS: time for all four variants; RUNS: inputs for each variant
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

from findleaks.engine.native.sources import VARIANTS

ROOT = Path(__file__).resolve().parents[2]
CLANG = "clang-19"
BASE = 0x10000  # as in native.c
SEEDS = 200
FLAGS = ("-std=c11", "-g", "-O1", "-DFL_SOURCES=0", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
LIMITS = ("-max_len=20000", "-len_control=0", "-timeout=20", "-rss_limit_mb=2000", "-use_value_profile=1", "-seed=1")


def build(folder: Path) -> list[Path]:
    """Build the harness for each word size and byte order in `folder`."""
    sources = [*map(str, sorted(ROOT.glob("common/native/*.c"))), str(ROOT / "tests/fuzz/native.c")]
    warnings = ("-Wall", "-Wextra", "-Werror")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for (word, order), name in VARIANTS.items():
        program = folder / f"fuzz{name}"
        words = (f"-DWORD={word}u", f"-DBIG={int(order == 'big')}")
        made.append((program, subprocess.Popen([CLANG, *FLAGS, *warnings, *words, "-o", str(program), *sources])))
    if sum(abs(process.wait()) for _, process in made):  # waits for all of them, so that none is left running
        raise SystemExit("the harness does not compile")
    return [program for program, _ in made]


def write_seeds(folder: Path, word: int, order: Literal["little", "big"]) -> None:
    """Write initial inputs that are glibc heaps (glibc_chunks.c) whose words refer to each other. Random bytes are rarely a valid heap."""
    for number in range(SEEDS):
        chance, heap = random.Random(number), b""
        sizes = [2 * word * chance.randint(2, 40) for _ in range(chance.randint(4, 60))]
        starts = [BASE + sum(sizes[:at]) + 2 * word for at in range(len(sizes))]
        for size in sizes:
            values = [
                chance.choice((chance.choice(starts) + chance.choice((0, 0, word, 16)), 0, chance.randint(0, 300)))
                for _ in range(size // word - 2)
            ]
            heap += b"".join(value.to_bytes(word, order) for value in (0, size | 1, *values))
        (folder / f"seed-{number}").write_bytes(bytes((4 * chance.randint(0, 60), chance.randint(0, 255))) + heap)


def run(program: Path, words: tuple[int, str], seconds: int, runs: int) -> int:
    """Return the exit status of libFuzzer. Inputs that fail are stored next to the program."""
    corpus = program.with_name(f"corpus-{program.name}")
    corpus.mkdir(exist_ok=True)
    write_seeds(corpus, words[0], "big" if words[1] == "big" else "little")
    limits = [*LIMITS, f"-max_total_time={seconds}", f"-runs={runs}", f"-artifact_prefix={program.parent}/{program.name}-"]
    return subprocess.run([str(program), *limits, str(corpus)], check=False).returncode


def main() -> int:
    seconds, runs = map(int, [*sys.argv[1:], *("60", "-1")[len(sys.argv) - 1 :]])
    programs = build(ROOT / "build" / "fuzz" / "native")
    return max([run(program, words, max(1, seconds // len(programs)), runs) for program, words in zip(programs, VARIANTS)])


if __name__ == "__main__":
    sys.exit(main())
