"""Ctrl-C at a debugger's prompt while `leaks find` runs: how soon the prompt is back."""

from __future__ import annotations

import time

from debuggers import Terminal
from stopwatch import Stopwatch

MAX_SECONDS = 0.3
DELAYS = (0.3, 1.0, 2.5)
"""Seconds after the command at which Ctrl-C is pressed; each is in another phase of it."""
MAX_PART = 1 / 30
"""Of a whole run's time: neighbours take caches and half of a core, and then all is slower alike."""


def check_interrupts(terminal: Terminal, ended: str) -> None:
    """Press Ctrl-C at three moments of a run; `ended` matches what is shown then. The next command
    works each time, and no traceback appears."""
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
