"""Measure how many calls per second `count` takes, and compare with an empty breakpoint callback of the same debugger in the same run.

usage: python tests/bench/count_rate.py [gdb | lldb] …

Print for each debugger the events per second of both, and the quotient. Both run in alternation, because other work on the machine affects
them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECONDS = 1
ROUNDS = 10

GDB_EMPTY = f"""
python
import gdb, time
class Empty(gdb.Breakpoint):
    def stop(self):
        self.n += 1
        return self.n % 50 == 0 and time.monotonic() > self.until
def empty():
    made = Empty("*" + hex(int(gdb.parse_and_eval("(long)&event"))), internal=True)
    made.silent = True
    made.n, made.until = 0, time.monotonic() + {SECONDS}
    began = time.monotonic()
    gdb.execute("continue", to_string=True)
    print("EMPTY", made.n / (time.monotonic() - began))
    made.delete()
end
"""
LLDB_EMPTY = f"""
import lldb, time
seen = 0
until = 0.0
def empty_callback(frame, location, extra, internal):
    global seen
    seen += 1
    return seen % 50 == 0 and time.monotonic() > until
def empty(debugger, command, result, internal):
    global seen, until
    target = debugger.GetSelectedTarget()
    made = target.BreakpointCreateByName("event")
    made.SetScriptCallbackFunction("empty_rate.empty_callback")
    debugger.SetAsync(False)
    seen, until = 0, time.monotonic() + {SECONDS}
    began = time.monotonic()
    while time.monotonic() < until:
        target.GetProcess().Continue()
    print("EMPTY", seen / (time.monotonic() - began))
    target.BreakpointDelete(made.GetID())
"""


def main(debuggers: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "calls"
        subprocess.run(["gcc", "-O2", "-o", str(program), str(HERE / "calls.c")], check=True)
        for debugger in debuggers or ["gdb", "lldb"]:
            with subprocess.Popen([str(program)], stdout=subprocess.PIPE) as running:
                try:
                    assert running.stdout is not None and running.stdout.readline()
                    output = (in_gdb if debugger == "gdb" else in_lldb)(running.pid, Path(folder))
                finally:
                    running.kill()
            rates = [float(rate) for rate in re.findall(r"^EMPTY ([\d.]+)", output, re.M)]
            empty = sum(rates) / max(1, len(rates))
            reported = re.findall(r"^([\d.]+) s: ([\d,]+) calls", output, re.M)
            counted = sum(int(calls.replace(",", "")) for _, calls in reported) / max(0.1, sum(float(seconds) for seconds, _ in reported))
            if not empty or not counted:
                print(f"{debugger}: it did not run:\n{output}")
                return 1
            print(f"{debugger:5} empty callback {empty:7,.0f}/s   count {counted:7,.0f}/s   {counted / empty:4.0%}")
    return 0


def in_gdb(pid: int, folder: Path) -> str:
    (folder / "empty.gdb").write_text(GDB_EMPTY)
    words = [
        "gdb",
        "-nx",
        "-batch",
        "-p",
        str(pid),
        "-ex",
        f"source {HERE.parents[1]}/gdb/findleaks_gdb.py",
        "-x",
        str(folder / "empty.gdb"),
    ]
    for _ in range(ROUNDS):
        words += ["-ex", "python empty()", "-ex", f"leaks count event --for {SECONDS}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120).stdout


def in_lldb(pid: int, folder: Path) -> str:
    (folder / "empty_rate.py").write_text(LLDB_EMPTY)
    words = ["lldb-19", "-x", "-b", "--no-use-colors", "-p", str(pid)]
    words += [
        "-o",
        f"command script import {HERE.parents[1]}/lldb/findleaks_lldb.py",
        "-o",
        f"command script import {folder}/empty_rate.py",
    ]
    words += ["-o", "command script add -f empty_rate.empty empty_rate"]
    for _ in range(ROUNDS):
        words += ["-o", "empty_rate", "-o", f"leaks count event --for {SECONDS}"]
    return subprocess.run([*words, "-o", "detach"], capture_output=True, text=True, timeout=120).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
