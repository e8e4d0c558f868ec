"""Press Ctrl-C again and again while a debugger counts, at times that a seed determines. Each key press must end the counting, and the
table of results must be printed.

python tests/support/pressed.py gdb|lldb TRIES [SEED]: prints the failures and the number of successful tries.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import building
from counts import code, places
from debuggers import Terminal, gdb_terminal, lldb_terminal

from cores import Running

TERMINALS: dict[str, Callable[..., Terminal]] = {"gdb": gdb_terminal, "lldb": lldb_terminal}
OPTIONS = ("", "--every 0.1", "--every 0.3", "--for 60", "--events 100000000", "--every 0.05 --for 60")
PAUSES = (0, 0, 100, 1000, 20_000, 3_000_000)
"""Microseconds that the program waits between two calls, for frequent, occasional and rare calls."""
PER_SESSION = 25
LIMIT = 180.0
"""Seconds within which the counting must end, even on a busy machine."""


class Try(NamedTuple):
    """The arguments of `count`, microseconds between calls, the key that is typed or the signal that is sent to the debugger, and the
    seconds between the setting of the breakpoint and the key."""

    words: str
    pause: int
    typed: bool
    delay: float


def tries(number: int, seed: int) -> Iterator[Try]:
    chance = random.Random(seed)
    for _ in range(number):
        yield Try(
            chance.choice(OPTIONS), chance.choice(PAUSES), chance.random() < 0.5, chance.choice((0.0, 0.02, 0.2, 0.7)) * chance.random()
        )


def compile_counting(folder: Path) -> Path:
    return building.compile_program(folder, "counting_steady.c", "-O1", "-pthread")


def failures(debugger: str, number: int, seed: int, folder: Path) -> list[str]:
    """Run tries. Return and print a text for each try that did not end with its table."""
    program = compile_counting(folder)
    found: list[str] = []
    rest = list(tries(number, seed))
    session = 0
    while rest:
        session += 1
        with Running([str(program)], folder / f"run{session}") as running, TERMINALS[debugger]("-p", str(running.pid)) as terminal:
            before = dict(code(running.pid, places(running.pid, program, ["event"])))
            for _ in range(min(PER_SESSION, len(rest))):
                one = rest.pop(0)
                wrong = press_key(terminal, running, program, before, one, debugger)
                if wrong:
                    found.append(f"{one}: {wrong}")
                    print(found[-1], flush=True)
                    break  # the state of the debugger is unknown now
    return found


def press_key(terminal: Terminal, running: Running, program: Path, before: dict[str, bytes], one: Try, debugger: str) -> str:
    """Return what went wrong with one try; "" if nothing."""
    at = places(running.pid, program, ["event"])
    (running.folder / "pause").write_text(str(one.pause))
    start = len(terminal.text)
    terminal.press(f"leaks count event {one.words}\n")
    limit = time.monotonic() + LIMIT
    while code(running.pid, at) == before:
        if time.monotonic() > limit:
            return f"no breakpoint within {LIMIT:.0f} s: {read_printed(terminal, start)}"
        time.sleep(0.002)
    time.sleep(one.delay)
    if one.typed:
        terminal.press("\x03")
    else:
        os.kill(terminal.pid, signal.SIGINT)
    try:
        text = terminal.until(r"interrupted[;\r\n]|[^\n]*(?i:quit)\r?\n", start, LIMIT)
    except AssertionError as error:
        return f"ignored: {str(error)[-1500:]}"
    mark = len(terminal.text)
    try:
        terminal.run("python print('is-' + 'ready')" if debugger == "gdb" else "script print('is-' + 'ready')", "is-ready")
    except AssertionError as error:
        return f"no prompt: {str(error)[-1500:]}"
    text = terminal.text[start:mark] + terminal.text[mark:]
    if "interrupted; the breakpoints were removed" not in text or not re.search(r" s: [\d,]+ calls?, ", text):
        return f"no table: {text[-1500:]!r}"
    if code(running.pid, at) != before:
        return f"the breakpoint is still there: {text[-500:]!r}"
    return ""


def read_printed(terminal: Terminal, start: int) -> str:
    """Return what the terminal printed since `start`."""
    try:
        return terminal.until(r"(?!)", start, 1.0)
    except AssertionError as error:
        return str(error)[-1500:]


def main() -> int:
    """For the command line."""
    debugger, number = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores this signal, and so would the debugger
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="findleaks-pressed-") as folder:
        wrong = failures(debugger, number, seed, Path(folder))
    print(f"{debugger}: {number - len(wrong)} of {number} ended with their table, in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
