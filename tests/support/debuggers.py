"""GDB and LLDB with findleaks loaded: whole command lists, and sessions at a terminal with keys pressed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

import commandline
import debian
import schemas

ROOT = Path(__file__).parents[2]
GDB_LOADER = ROOT / "gdb" / "findleaks_gdb.py"
LLDB_LOADER = ROOT / "lldb" / "findleaks_lldb.py"
PATIENCE = 180.0
"""Seconds after which something hangs, on however busy a machine."""
LLDB = "lldb-19"
INDEXED = (
    *("-iex", f"set index-cache directory {debian.cache() / 'gdb-index'}"),
    *("-iex", "set index-cache enabled on"),
)
"""Options that make GDB keep its index of debug information, by build-id. Without them, a third of its start is the indexing of libc."""
REWRITTEN = ("-iex", "set index-cache enabled off")
"""Options for a program whose debug information was rewritten (for example by dwz) without a new build-id."""
QUICKLY = "settings set target.preload-symbols false"
"""LLDB reads a module's symbols when it needs them: to read all at the start takes it seconds on Node or a JVM. `lldb_terminal` has the
default."""
_ENVIRONMENT = {"DEBUGINFOD_URLS": "", "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **_ENVIRONMENT, **more}


def gdb(commands: Sequence[str], *arguments: str, **more: str) -> str:
    """What GDB prints while it runs these commands on what `arguments` name (exe core, or -p PID), standard error among it."""
    words = ["gdb", "-nx", "-batch", *INDEXED, "-ex", f"source {GDB_LOADER}"]
    for command in commands:
        words += ["-ex", command]
    return _run([*words, *arguments], "", **more)


def lldb(commands: Sequence[str], *arguments: str, **more: str) -> str:
    """What LLDB prints while it runs these commands on what `arguments` name (exe -c core, or -p PID)."""
    with tempfile.NamedTemporaryFile("w", prefix="findleaks-", suffix=".lldb") as file:
        # From a file, as on standard input LLDB goes on while a process still starts or stops, and -o ends at the first error.
        file.writelines(command + "\n" for command in commands)
        file.flush()
        words = [LLDB, "-x", "--no-use-colors", "-O", QUICKLY, "-O", f"command script import {LLDB_LOADER}"]
        return _run([*words, "-o", f"command source -e false {file.name}", *arguments], "", **more)


def findleaks(*words: str, **more: str) -> str:
    """What the command line prints, standard error among it."""
    printed = commandline.run(words, environment(**more), merged=True).stdout
    schemas.check_output(words, printed)
    return printed


def ran(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """The command line's exit status, standard output and standard error; `check`: RuntimeError unless the status is 0."""
    done = commandline.run(words, environment())
    if check and done.returncode:
        raise RuntimeError(f"findleaks {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    schemas.check_output(words, done.stdout)
    return done


def found(command: str, *words: str) -> dict[str, Any]:
    """Return the JSON object that a command prints, whatever its exit status is."""
    return dict(json.loads(ran(command, "--json", *words).stdout))


def runtime_page(name: str, *words: str) -> dict[str, Any]:
    """Return what `runtime` reports for the only runtime with this name. `words`: the target and further options."""
    (page,) = json.loads(findleaks("runtime", "--only", name, "--json", *words))["runtimes"]
    return dict(page)


def place(reference: Mapping[str, Any]) -> str:
    """Where a reference of `refs --json` stands, as the command describes it: in memory, or in a register of a thread."""
    in_register = f"register {reference.get('register')} of thread {reference.get('thread')}"
    return str(reference["from"]["text"]) if "from" in reference else in_register


def _run(words: Sequence[str], given: str, **more: str) -> str:
    done = subprocess.run(
        list(words), input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, env=environment(**more)
    )
    return done.stdout


def objects(output: str) -> list[str]:
    """The lines of `output` that are JSON objects."""
    return [line for line in output.splitlines() if line.startswith("{")]


class Terminal:
    """A program at a terminal of its own. `text` is all it printed so far."""

    def __init__(self, words: Sequence[str], **more: str) -> None:
        self.text = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
                # Without a size LLDB does not take it for a terminal.
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 50, 120, 0, 0))
                os.execvpe(words[0], list(words), environment(**more))
            finally:
                os._exit(127)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, pattern: str, start: int = 0, patience: float = PATIENCE) -> str:
        """What was printed from `start` on, once that holds `pattern`."""
        limit = time.monotonic() + patience
        while re.search(pattern, self.text[start:]) is None:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise AssertionError(f"no {pattern!r} after {patience} s in: {self.text[start:]!r}")
            try:
                self.text += os.read(self._fd, 1 << 16).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.text[start:]!r}") from None
        return self.text[start:]

    def run(self, command: str, pattern: str) -> str:
        """Type a command, and wait for what it is to print."""
        start = len(self.text)
        self.press(command + "\n")
        return self.until(pattern, start)


def gdb_terminal(*arguments: str, **more: str) -> Terminal:
    """GDB at a terminal, ready for commands."""
    made = Terminal(["gdb", "-nx", "-q", *INDEXED, "-ex", f"source {GDB_LOADER}", *arguments], **more)
    made.run("python print('is-' + 'ready')", "is-ready")
    return made


def lldb_terminal(*arguments: str, **more: str) -> Terminal:
    """LLDB at a terminal, ready for commands."""
    made = Terminal([LLDB, "-x", "--no-use-colors", "-O", f"command script import {LLDB_LOADER}", *arguments], **more)
    made.run("script print('is-' + 'ready')", "is-ready")
    return made
