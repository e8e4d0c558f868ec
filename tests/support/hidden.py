"""Programs for type hints, such as tests/programs/typed_hints.c: their cores, and the true types of their blocks."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Optional

import building
from debuggers import run_cli

import cores


class Hidden(NamedTuple):
    """A core of a program. `truth` maps the address of each block without text to its type; `places` has the addresses that the program
    prints: "registry", "reserve". `texts`: the number of blocks with text."""

    program: Path
    core: Path
    truth: dict[int, str]
    places: dict[str, int]
    texts: int

    def hint(self, name: str, kind: str) -> list[str]:
        """Return the option that declares the type at an address."""
        return ["--type", f"{self.places[name]:#x}={kind}"]

    def verdicts(self, *words: str) -> dict[tuple[str, Optional[str]], Counter[str]]:
        """Count blocks by (true type, type that `blocks` prints), and for each pair by the origin of the printed type."""
        return self.compared(run_cli("blocks", "--json", "--limit", "0", *words, str(self.core), check=True).stdout)

    def compared(self, output: str) -> dict[tuple[str, Optional[str]], Counter[str]]:
        """Return the same counts for the output of `blocks --json`."""
        found: dict[tuple[str, Optional[str]], Counter[str]] = {}
        for row in map(json.loads, filter(lambda line: line.startswith("{"), output.splitlines())):
            true = self.truth.get(int(row["address"], 16)) if "address" in row else None
            if true is not None:
                said = row["type"] and re.sub(r"\[\d+\]$", "[]", row["type"])
                found.setdefault((true, said), Counter())[row.get("type_from", "")] += 1
        return found


def run(folder: Path, items: int = 100, source: str = "typed_hints.c") -> Hidden:
    """Compile a program, run it until it is ready, and write its core."""
    program = building.compile_program(folder, source, "-g", "-O2")
    with cores.Running([str(program), str(items)], folder / "run") as running:
        core = running.kernel_core()
    truth, places = {}, {}
    for line in running.output.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[2] != "char":
            truth[int(words[0], 16)] = words[2]
        elif len(words) == 2:
            places[words[1]] = int(words[0], 16)
    return Hidden(program, core, truth, places, running.output.count(" char\n"))
