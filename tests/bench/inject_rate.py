"""Measure how many calls per second `count --inject` counts, and by how much it slows the program down in the same run.

usage: python tests/bench/inject_rate.py

Rounds with and without the stub alternate, because other work on the machine affects them. The slowdown compares calls per second of
processor time, which the program itself reports. There are two programs: tests/programs/busy.c, which calls as fast as it can, or does some
work between two calls; and Node 0.10.21, which closes handles as fast as it can, and calls MakeCallback twice for each.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROUNDS, SECONDS = 5, 2.0
CLOSING = """
var TCP = process.binding('tcp_wrap').TCP, made = 0, open = 0;
function closed() { made++; if (!--open) setImmediate(batch); }
function batch() { for (open = 0; open < 200; open++) new TCP().close(closed); }
var fs = require('fs');
function ticks() { var f = fs.readFileSync('/proc/self/stat', 'ascii').split(') ')[1].split(' '); return +f[11] + +f[12]; }
var before = ticks();
setInterval(function () { var now = ticks(); console.log(made + ' ' + 100 * made / (now - before)); made = 0; before = now; }, 200);
batch();
console.log('ready');
"""


def main() -> int:
    sys.path.insert(0, str(HERE.parent / "support"))
    import nodes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "busy"
        subprocess.run(["gcc", "-O2", "-o", str(program), str(HERE.parent / "programs" / "busy.c"), "-pthread"], check=True)
        (folder / "closing.js").write_text(CLOSING)
        print(f"{'':34} {'CALLS/s':>10} {'SLOWDOWN':>9}")
        timed("as fast as it can, one thread", [str(program), "1"], "event", folder)
        timed("with work between the calls", [str(program), "1", "500"], "event", folder)
        timed("Node 0.10.21, closing handles", [nodes.get("0.10.21"), "closing.js"], "node::MakeCallback", folder, "--outside-scope", "v8")
    return 0


def timed(what: str, command: Sequence[str], function: str, folder: Path, *rule: str) -> None:
    """Return one line of the report."""
    out = folder / "out"
    with open(out, "wb") as output, subprocess.Popen(list(command), stdout=output, cwd=folder) as running:
        try:
            while b"ready" not in out.read_bytes():
                time.sleep(0.05)
            rates: dict[bool, list[float]] = {False: [], True: []}
            events = seconds = 0.0
            words = [
                sys.executable,
                "-m",
                "findleaks",
                "count",
                function,
                "--inject",
                "--for",
                str(SECONDS),
                *rule,
                "--pid",
                str(running.pid),
            ]
            for _ in range(ROUNDS):
                before = printed(out)
                time.sleep(SECONDS)
                rates[False] += printed(out)[len(before) + 1 :]
                text, during = counted(words, running.pid, out)
                rates[True] += during
                match = re.search(r"^([\d.]+) s: (?:[\d,]+ of )?([\d,]+) calls", text, re.M)
                assert match is not None, text
                seconds += float(match[1])
                events += int(match[2].replace(",", ""))
        finally:
            running.kill()
    slow = 1 - statistics.median(rates[True]) / statistics.median(rates[False])
    print(f"{what:34} {events / seconds:>10,.0f} {slow:>9.0%}", flush=True)


def printed(out: Path) -> list[float]:
    """Return the rates that the program has printed so far."""
    return [float(row[1]) for row in map(str.split, out.read_text().splitlines()) if len(row) == 2]


def counted(words: Sequence[str], pid: int, out: Path) -> tuple[str, list[float]]:
    """Return the output of `count`, and the rates of the intervals during which the stub was installed from beginning to end."""
    first = last = 0
    with subprocess.Popen(list(words), stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            if any(" r-xp " in line and len(line.split()) == 5 for line in maps):
                last = len(printed(out))
                first = first or last
            time.sleep(0.02)
        assert process.stdout is not None
        return process.stdout.read(), printed(out)[first + 1 : last - 1]


if __name__ == "__main__":
    sys.exit(main())
