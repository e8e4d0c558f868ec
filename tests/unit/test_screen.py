"""A table that is redrawn in place, in a separate terminal. The test presses keys and changes the terminal's size."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import struct
import sys
import termios
from pathlib import Path

import pytest
from debuggers import Terminal

SCRIPT = """
import os, sys, time
from findleaks.report.screen import Screen
screen = Screen(sys.stdin, sys.stdout)
def lines(width):
    return [f"{width} wide", "x" * 300, *(f"line {number}" for number in range(100))]
try:
    with screen:
        screen.show(lines)
        if sys.argv[1] == "wait":
            screen.wait(60)
        elif sys.argv[1] == "fail":
            raise ValueError("as it happens")
        else:
            while True:
                screen("reading", 0.5)
except KeyboardInterrupt:
    print("interrupted")
print("ended")
"""


def start_command(word: str) -> Terminal:
    terminal = Terminal([sys.executable, "-c", SCRIPT, word])
    terminal.until(r"120 wide[\s\S]*line 47")
    return terminal


def flags(terminal: Terminal) -> int:
    return int(termios.tcgetattr(terminal._fd)[3]) & (termios.ICANON | termios.ECHO)


def frames(text: str) -> list[list[str]]:
    """The lines of each frame, without control sequences."""
    return [re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", frame.replace("\r", "")).split("\n") for frame in text.split("\x1b[H")[1:]]


def check_restored(terminal: Terminal, text: str) -> None:
    """At the end, and not earlier: the cursor is shown, lines wrap, and the alternate screen is left."""
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    assert text.index("\x1b[?7l") < text.index("\x1b[?7h")
    assert flags(terminal) == termios.ICANON | termios.ECHO


@pytest.mark.parametrize("word", ["wait", "work"])
@pytest.mark.parametrize("key", ["q", "\x03"])
def test_keys_that_end_the_table(word: str, key: str) -> None:
    """Two cases: the command waits, or it reports progress."""
    with start_command(word) as terminal:
        assert flags(terminal) == 0
        terminal.press(key)
        text = terminal.text + terminal.until("interrupted\r\nended", len(terminal.text))
        check_restored(terminal, terminal.text)
        assert "Traceback" not in text


@pytest.mark.parametrize("word", ["wait", "work"])
def test_table_fits_the_terminal(word: str) -> None:
    """Lines are cut at the terminal's width, and the table at its height, again after each resize."""
    with start_command(word) as terminal:
        (first,) = frames(terminal.text)
        assert len(first) == 50 and max(map(len, first)) == 120
        start = len(terminal.text)
        fcntl.ioctl(terminal._fd, termios.TIOCSWINSZ, struct.pack("4H", 12, 60, 0, 0))
        terminal.until(r"60 wide[\s\S]*line 9", start)
        second = frames(terminal.text)[-1]
        assert len(second) == 12 and max(map(len, second)) == 60
        start = len(terminal.text)
        fcntl.ioctl(terminal._fd, termios.TIOCSWINSZ, struct.pack("4H", 5, 20, 0, 0))
        terminal.until(r"40 wide[\s\S]*line 2", start)  # rendered for 40 columns, and cut
        assert max(map(len, frames(terminal.text)[-1])) == 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_the_table(number: signal.Signals) -> None:
    with start_command("wait") as terminal:
        os.kill(terminal.pid, number)
        terminal.until(r"\x1b\[\?1049l")
        assert _status(terminal.pid) == 128 + number
        check_restored(terminal, terminal.text)


def _status(pid: int) -> int:
    """Return the status of a child that has ended, without reaping it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return int(found.si_status)


def test_an_exception_in_the_middle() -> None:
    with start_command("fail") as terminal:
        terminal.until("ValueError: as it happens")
        check_restored(terminal, terminal.text)


def test_suspended_and_resumed(tmp_path: Path) -> None:
    """Ctrl-Z returns the terminal to the shell. When the shell resumes the command, it draws the table again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Terminal(
        ["bash", "-mc", f"{shlex.quote(sys.executable)} {script} wait; stty -a; echo stopped $?; read word; fg; echo over"]
    ) as terminal:
        terminal.until("line 47")
        terminal.press("\x1a")
        shown = terminal.until("stopped")
        assert shown.index("\x1b[?1049l") < shown.index("stopped")
        assert re.search(r"[^-]icanon[\s\S]*[^-]echo ", shown)
        start = len(terminal.text)
        terminal.press("\n")
        terminal.until(r"\x1b\[\?1049h[\s\S]*line 47", start)
        terminal.press("q")
        terminal.until(r"interrupted\r\nended[\s\S]*over", start)


def test_ctrl_c_that_python_drops() -> None:
    """Python prints and drops an exception in a destructor or in the callback of a weak reference. A Ctrl-C must not be lost there."""
    script = """
import time
from findleaks import cli
class Dropped:
    def __del__(self):
        raise KeyboardInterrupt
def run(words, prog):
    Dropped()
    for _ in range(6000):
        time.sleep(0.01)
    return 0
cli._run = run
print("status", cli.main(["x"]))
"""
    with Terminal([sys.executable, "-c", script]) as terminal:
        text = terminal.until("status 130")
    assert "Traceback" not in text
