"""Measure `scopes` on cores of Node with many objects, each of which has three handles: median processor time of the whole command.

usage: python tests/bench/scopes.py [OBJECTS …]      (needs npm, gcc, and kernel.core_pattern=core, as the tests do)
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]
RUNS = 5


def main(words: list[str]) -> int:
    import nodes

    from cores import Running

    programs = HERE.parent / "programs"
    for count in words or ["366667", "1100000"]:
        with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
            folder = Path(scratch)
            addon = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(folder / "objects.node"), str(programs / "node_objects.c")]
            subprocess.run(addon, check=True)
            shutil.copy(programs / "node_addon.js", folder)
            command = [nodes.get(nodes.NEWEST), "--expose-gc", str(folder / "node_addon.js"), "objects", count]
            with Running(command, folder / "run") as running:
                core = running.kernel_core()
            spent = [cost(core) for _ in range(RUNS)]
        print(
            f"{int(count):>9,} objects, {3 * int(count):>9,} handles: {statistics.median(spent):.2f} s ({min(spent):.2f}–{max(spent):.2f})"
        )
    return 0


def cost(core: Path) -> float:
    """Return the processor seconds of one run."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "findleaks", "scopes", str(core)], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
