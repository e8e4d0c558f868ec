"""Press Ctrl-C in a debugger while `leaks find` runs, and measure the time until the prompt is back."""

from __future__ import annotations

import time

from debuggers import Terminal
from stopwatch import Stopwatch

MAX_SECONDS = 0.3
DELAYS = (0.3, 1.0, 2.5)
"""Seconds after the command at which Ctrl-C is pressed. Each is in a different phase of the command."""
MAX_PART = 1 / 30
"""The limit as a part of the whole run's time. On a machine that runs other programs, both times grow alike."""


def check_interrupts(terminal: Terminal, ended: str) -> None:
    """Press Ctrl-C at three times of a run; `ended` matches the text that is shown then. The next command must work each time, and no
    traceback may appear."""
    took = []
    for delay in DELAYS:
        start = len(terminal.text)
        terminal.press("leaks find\n")
        time.sleep(delay)
        pressed = Stopwatch(terminal.pid)
        terminal.press("\x03")
        output = terminal.until(ended, start)
        took.append(pressed.seconds())
        assert not any(word in output for word in ("Traceback", "Python Exception", "internal error"))
    whole = Stopwatch(terminal.pid)
    assert "leaked: " in terminal.run("leaks find --limit 1", "leaked: ")
    assert max(took) < max(MAX_SECONDS, whole.seconds() * MAX_PART)
