"""Run GDB and LLDB with findleaks loaded: lists of commands, and sessions at a terminal in which keys are pressed."""

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
"""Seconds after which a command is considered to hang, even on a busy machine."""
LLDB = "lldb-19"
INDEXED = (
    *("-iex", f"set index-cache directory {debian.cache() / 'gdb-index'}"),
    *("-iex", "set index-cache enabled on"),
)
"""Options that make GDB cache its index of debug information, by build-id. Without the cache, indexing libc is a third of GDB's start."""
REWRITTEN = ("-iex", "set index-cache enabled off")
"""Options for a program whose debug information was rewritten (for example by dwz) without a new build-id."""
QUICKLY = "settings set target.preload-symbols false"
"""Let LLDB read a module's symbols only when it needs them: reading all at the start takes seconds for Node or a JVM. `lldb_terminal` uses
LLDB's default."""
_ENVIRONMENT = {"DEBUGINFOD_URLS": "", "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **_ENVIRONMENT, **more}


def gdb(commands: Sequence[str], *arguments: str, **more: str) -> str:
    """Run these commands in GDB on `arguments` (exe core, or -p PID), and return the output with standard error."""
    words = ["gdb", "-nx", "-batch", *INDEXED, "-ex", f"source {GDB_LOADER}"]
    for command in commands:
        words += ["-ex", command]
    return _run([*words, *arguments], "", **more)


def lldb(commands: Sequence[str], *arguments: str, **more: str) -> str:
    """Run these commands in LLDB on `arguments` (exe -c core, or -p PID), and return the output with standard error."""
    with tempfile.NamedTemporaryFile("w", prefix="findleaks-", suffix=".lldb") as file:
        # The commands are in a file. From standard input, LLDB continues while a process is still starting; -o ends at the first error.
        file.writelines(command + "\n" for command in commands)
        file.flush()
        words = [LLDB, "-x", "--no-use-colors", "-O", QUICKLY, "-O", f"command script import {LLDB_LOADER}"]
        output = _run([*words, "-o", f"command source -e false {file.name}", *arguments], "", **more)
    # LLDB prints this when it ends on a busy machine.
    return re.sub(r"Waiting for background tasks to complete\.\.\.\n?", "", output)


def findleaks(*words: str, **more: str) -> str:
    """Run the command line, and return its output with standard error."""
    printed = commandline.run(words, environment(**more), merged=True).stdout
    schemas.check_output(words, printed)
    return printed


def run_cli(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command line; return its exit status, standard output and standard error. `check`: raise RuntimeError unless the status is
    0."""
    done = commandline.run(words, environment())
    if check and done.returncode:
        raise RuntimeError(f"findleaks {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    schemas.check_output(words, done.stdout)
    return done


def run_json(command: str, *words: str) -> dict[str, Any]:
    """Return the JSON object that a command prints, whatever its exit status is."""
    return dict(json.loads(run_cli(command, "--json", *words).stdout))


def runtime_page(name: str, *words: str) -> dict[str, Any]:
    """Return what `runtime` reports for the only runtime with this name. `words`: the target and further options."""
    (page,) = json.loads(findleaks("runtime", "--only", name, "--json", *words))["runtimes"]
    return dict(page)


def place(reference: Mapping[str, Any]) -> str:
    """Return the place of a reference in `refs --json`, in the words of the command: in memory, or in a register of a thread."""
    in_register = f"register {reference.get('register')} of thread {reference.get('thread')}"
    return str(reference["from"]["text"]) if "from" in reference else in_register


def _run(words: Sequence[str], given: str, **more: str) -> str:
    done = subprocess.run(
        list(words), input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, env=environment(**more)
    )
    return done.stdout


def objects(output: str) -> list[str]:
    """Return the lines of `output` that are JSON objects."""
    return [line for line in output.splitlines() if line.startswith("{")]


class Terminal:
    """A program in its own pseudo-terminal. `text` is everything that it has printed so far."""

    def __init__(self, words: Sequence[str], **more: str) -> None:
        self.text = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
                # LLDB accepts it as a terminal only if it has a size.
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
        """Wait until the output after position `start` matches `pattern`, and return this output."""
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
        """Type a command, and wait for the output that `pattern` matches."""
        start = len(self.text)
        self.press(command + "\n")
        return self.until(pattern, start)


def gdb_terminal(*arguments: str, **more: str) -> Terminal:
    """Start GDB in a terminal, and wait for its prompt."""
    made = Terminal(["gdb", "-nx", "-q", *INDEXED, "-ex", f"source {GDB_LOADER}", *arguments], **more)
    made.run("python print('is-' + 'ready')", "is-ready")
    return made


def lldb_terminal(*arguments: str, **more: str) -> Terminal:
    """Start LLDB in a terminal, and wait for its prompt."""
    made = Terminal([LLDB, "-x", "--no-use-colors", "-O", f"command script import {LLDB_LOADER}", *arguments], **more)
    made.run("script print('is-' + 'ready')", "is-ready")
    return made
