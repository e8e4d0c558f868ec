"""Damage cores of every allocator and runtime, and run findleaks' commands on them: `make fuzz`, or

python tests/fuzz/fuzz.py [--count N] [--seed FIRST] [--only NAME,…] [--keep FOLDER]

Each mutation depends only on its number, so that the printed number of a failure reproduces it. A failure is reduced to few edits, and
stored in FOLDER.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

import fuzz_corpus  # noqa: E402
import sanitizers  # noqa: E402
import trials  # noqa: E402
from fuzz_cases import Case, Found, kind  # noqa: E402
from mutations import Edit  # noqa: E402

SHARES = {
    **dict.fromkeys(("node", "node-24", "java", "java-g1", "java-25"), 1),
    **dict.fromkeys(("ruby", "ruby-3.3", "python", "python-3.9", "python-3.14", "go"), 2),
}
"""The number of mutations of each large core. Other cores get 8."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first mutation's number")
    parser.add_argument("--only", default=",".join(fuzz_corpus.MAKERS))
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after this time")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only this one, as kept")
    parser.add_argument("--sanitized", action="store_true", help="with the C engine under AddressSanitizer and UndefinedBehaviorSanitizer")
    words = parser.parse_args()
    if words.sanitized and not trials.SANITIZED:
        os.execve(sys.executable, [sys.executable, *sys.argv], sanitizers.environment(ROOT / "build" / "fuzz", every=True))
    if words.again:
        return again(words.again)
    names = words.only.split(",")
    turns = [name for name in names for _ in range(SHARES.get(name, 8))]
    random.Random(0).shuffle(turns)
    trials.import_all()
    problems: dict[str, Found] = {}
    tries: Counter[str] = Counter()
    began = time.monotonic()
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = {name: Case(name, Path(folder)) for name in names}
        print(f"{len(cases)} sound cores ready after {time.monotonic() - began:.0f} s", flush=True)
        for seed in range(words.seed, words.seed + words.count):
            case = cases[turns[seed % len(turns)]]
            outcome, found = case.trial(seed, 2)
            done += 1
            tries[case.name] += 1
            if outcome.problem:
                one = kind(outcome.problem)
                tried = " · ".join(" ".join(line) for line in found.commands)
                print(f"\n{case.name} {seed} ({tried}): {one}" + (" (again)" if one in problems else "\n" + outcome.problem), flush=True)
                if one not in problems:
                    problems[one] = case.shrunk(found)
                    keep(problems[one], words.keep)
            if done % 100 == 0:
                print(f"{done:,} mutations in {time.monotonic() - began:,.0f} s: {len(problems)} problems", flush=True)
            if words.minutes and time.monotonic() - began > words.minutes * 60:
                break
    print(", ".join(f"{name} {count}" for name, count in sorted(tries.items())))
    print(f"{done:,} mutations (from {words.seed} on) in {time.monotonic() - began:,.0f} s: {len(problems)} problems")
    return 1 if problems else 0


def again(path: Path) -> int:
    """Try a stored mutation again."""
    body = json.loads(path.read_text())
    edits = [Edit(at, None if data is None else base64.b64decode(data)) for at, data in body["edits"]]
    with tempfile.TemporaryDirectory() as folder:
        outcome = Case(body["core"], Path(folder)).run(edits, body["commands"])
    print(outcome.problem or f"nothing wrong: {outcome.seconds:.1f} s, {outcome.memory >> 20} MiB")
    return 1 if outcome.problem else 0


def keep(found: Found, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    edits = [[edit.at, None if edit.data is None else base64.b64encode(edit.data).decode()] for edit in found.edits]
    body = {"core": found.name, "seed": found.seed, "commands": found.commands, "edits": edits, "problem": found.problem}
    path = folder / f"{found.name}-{found.seed}.json"
    path.write_text(json.dumps(body, indent=1))
    print(f"kept as {path}: {len(edits)} edits, {' · '.join(' '.join(line) for line in found.commands)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
