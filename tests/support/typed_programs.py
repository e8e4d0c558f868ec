"""Compare the types that findleaks finds with the types that a program prints for each of its blocks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import commandline

import cores

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
LEAKED = ("definite", "indirect")
COMPILERS = {".c": "gcc", ".cpp": "g++", ".rs": "rustc"}
LIBCXX = ("-stdlib=libc++", "-O1", "-std=c++20", "-Wl,-rpath,/usr/lib/llvm-19/lib")


class Figures(NamedTuple):
    """Numbers of reachable and of leaked blocks by verdict, and of all blocks by the source of the type. A verdict is "none" (no type), or
    "sure" or "inferred" with "right" or "wrong"."""

    held: Counter[str]
    leaked: Counter[str]
    sources: Counter[str]
    wrong: list[str]

    def part(self, of: Counter[str], *words: str) -> float:
        return sum(of[word] for word in words) / sum(of.values())


def plain(name: str) -> str:
    """Return a type without the number of an array's elements, because a block may have space for one more."""
    return re.sub(r"\[\d+\]$", "[]", name)


def measure(source: str, folder: Path, blocks: int, seed: int, *flags: str, commands: Sequence[str] = (), triplet: str = "") -> Figures:
    """Build a program, run it, and compare `blocks --json` with what it printed. `commands` change the program, typed_truth, before it
    runs. They are executed in its folder. `triplet`: that of the compiler, with a hyphen at the end."""
    program, compiler = folder / "typed_truth", shutil.which(triplet + COMPILERS[Path(source).suffix])
    assert compiler is not None, "rustc comes with cargo: apt-get install cargo"
    subprocess.run([compiler, "-g", *flags, "-o", program, PROGRAMS / source], check=True)
    for command in commands:
        subprocess.run(command.split(), check=True, cwd=folder)
    with cores.Running([str(program), str(blocks), str(seed)], folder / "run") as running:
        truth = {}
        for line in running.output.splitlines():
            words = line.split(" ", 2)
            if len(words) == 3 and not words[2].startswith("char"):
                truth[int(words[0], 16)] = words[2]
        words = ["blocks", "--json", "--limit", "0", "--pid", str(running.pid)]
        done = commandline.run(words, {**os.environ, "XDG_CACHE_HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    figures = Figures(Counter(), Counter(), Counter(), [])
    for row in map(json.loads, done.stdout.splitlines()):
        expected = truth.pop(int(row["address"], 16), None) if "address" in row else None
        if expected is None:
            continue
        figures.sources[row.get("type_from", "")] += 1
        said, sure = row["type"], "sure" if row.get("type_sure") else "inferred"
        verdict = "none" if said is None else f"{sure} {'right' if plain(said) == plain(expected) else 'wrong'}"
        (figures.leaked if row["kind"] in LEAKED else figures.held)[verdict] += 1
        if verdict.endswith("wrong"):
            figures.wrong.append(f"{row['address']} {row['kind']}: {expected}, said {said} ({row['type_from']}, {sure})")
    assert not truth
    return figures


def check_wrong(figures: Figures, most: float) -> None:
    """Check that no certain type is wrong, and at most this fraction of the blocks has a wrong inferred type."""
    every = figures.held + figures.leaked
    assert every["sure wrong"] == 0, figures.wrong[:12]
    assert every["inferred wrong"] <= most * sum(every.values()), figures.wrong[:12]


def check(figures: Figures) -> None:
    shown = f"{figures.held} {figures.leaked}\n" + "\n".join(figures.wrong[:12])
    sure = figures.held["sure right"] + figures.leaked["sure right"]
    assert figures.held["sure wrong"] + figures.leaked["sure wrong"] <= 0.005 * sure, shown
    assert figures.part(figures.held, "none") <= 0.1, shown
    typed = sum(figures.leaked.values()) - figures.leaked["none"]
    assert typed >= 0.8 * sum(figures.leaked.values()), shown
    assert figures.leaked["sure right"] + figures.leaked["inferred right"] >= 0.95 * typed, shown
