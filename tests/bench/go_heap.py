"""Measure `runtime` on a large Go heap: CPU seconds, and anonymous memory of findleaks per object.

Run many_objects.go (10 M objects of about 50 bytes by default), and take a core. Run `runtime` on the core `--runs` times as users do,
with one thread, and print the least of each figure. Memory is anonymous memory: the memory of a process without the pages of the core.
The memory of the interpreter and of findleaks' modules does not depend on the number of objects. It is measured with a core of FEW
objects. Fail if the memory is above BYTES per object, or above MORE per object without this part.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import command

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))

import cores  # noqa: E402 (of the tests)

BYTES, MORE, FEW = 25.0, 24.0, 1000


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", nargs="?", type=int, default=10_000_000, help="least number of objects")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which the least is printed")
    args = parser.parse_args(words)
    env = {**os.environ, "FINDLEAKS_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="findleaks-bench-") as scratch:
        program, found = f"{scratch}/many_objects", []
        subprocess.run(["go", "build", "-o", program, str(HERE / "many_objects.go")], check=True)
        crash = {**os.environ, "GOTRACEBACK": "crash"}  # SIGABRT writes a core
        for objects in (args.objects, FEW):
            with cores.Running([program, str(objects)], Path(scratch) / str(objects), crash, subprocess.PIPE) as running:
                core = running.kernel_core()
            runs = [command([sys.executable, "-m", "findleaks", "runtime", str(core)], env) for _ in range(args.runs)]
            found.append({key: min(one[key] for one in runs) for key in runs[0]})
    many, few = found
    each, more = many["memory"] / args.objects, (many["memory"] - few["memory"]) / args.objects
    print(f"{args.objects:,} objects: {many['user']:.2f} s of user CPU, {many['cpu']:.2f} s of all CPU, {each:.1f} B of memory an object")
    print(f"{more:.1f} B an object without the {few['memory'] / 1e6:.0f} MB that {FEW:,} objects take")
    return 0 if each <= BYTES and more <= MORE else 1


if __name__ == "__main__":
    sys.exit(main())
