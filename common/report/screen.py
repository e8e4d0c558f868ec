"""Redraw a table in place on a terminal, as top does. This handles the alternate screen, keys and
resizing.

Control sequences: xterm's "ctlseqs", DEC private modes 7 (wrap), 25 (cursor) and 1049 (alternate
screen), which tmux, screen and Linux's console also support."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Optional, TextIO, Union

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
NARROW = 40
"""Fewest columns that are rendered."""
LOOK = 0.05
"""Seconds between two polls of the keyboard during other work."""

Render = Callable[[int], Iterable[str]]
"""A function that returns the lines for a number of columns, safe for a terminal."""
Handler = Union[Callable[[int, Optional[FrameType]], Any], int, None]


def has_screen(out: TextIO) -> bool:
    """Whether a table can be redrawn on `out`: it must be a terminal that is not part of an editor
    (TERM is then "dumb")."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """The terminal during a `with` block. At the end, its previous state is restored in any case.

    A Screen is also a session's Progress. It shows no progress, but each call polls the keyboard.
    `q` raises KeyboardInterrupt, as Ctrl-C does; SIGTERM and SIGHUP raise SystemExit; Ctrl-Z
    releases the terminal until `fg`."""

    def __init__(self, keys: TextIO, out: TextIO) -> None:
        self._out = out
        self._keys: Optional[int] = keys.fileno() if keys.isatty() else None
        self._saved: Optional[list[Any]] = None
        self._handlers: dict[int, Handler] = {}
        self._wake: tuple[int, int] = (-1, -1)
        self._woken = -1
        self._render: Render = lambda width: ()
        self._size = os.terminal_size((0, 0))
        self._looked = 0.0
        self._suspended = False

    def __enter__(self) -> Screen:
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGWINCH, lambda number, frame: None),  # wakes `wait`, which reads the new size
            (signal.SIGTSTP, self._on_suspend),
            (signal.SIGTERM, _end),
            (signal.SIGHUP, _end),
        ):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup sets SIGHUP to be ignored
                self._handlers[number] = signal.signal(number, handler)
        try:
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        # A second Ctrl-C must not interrupt this.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._give_back()
        signal.set_wakeup_fd(self._woken)
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()
        for descriptor in self._wake:
            os.close(descriptor)
        signal.signal(signal.SIGINT, interrupt)

    def _take(self) -> None:
        if self._keys is not None:
            self._saved = termios.tcgetattr(self._keys)
            wanted = [*self._saved]
            wanted[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._keys, termios.TCSADRAIN, wanted)
        self._send(ENTER)

    def _give_back(self) -> None:
        try:
            self._send(LEAVE)
        except OSError:
            pass  # the terminal is gone
        if self._keys is not None and self._saved is not None:
            try:
                termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._saved)
            except termios.error:
                pass
        self._saved = None

    def _send(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    # -- output

    def show(self, render: Render) -> None:
        """Show these lines from now on. `render` is called again if the size of the terminal
        changes. Lines and columns that do not fit are left out."""
        self._render = render
        self._draw()

    def _draw(self) -> None:
        self._size = self._terminal_size()
        columns, rows = self._size
        lines = [line[:columns] for line in self._render(max(NARROW, columns))][:rows]
        # The last line has no line end, because it would scroll the first line away.
        body = "\r\n".join(line + END_OF_LINE for line in lines)
        self._send(HOME + body + (END_OF_SCREEN if len(lines) < rows else ""))

    def _terminal_size(self) -> os.terminal_size:
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except OSError:
            columns = rows = 0
        return os.terminal_size((columns or 80, rows or 24))

    # -- input

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds, and handle keys and resizing. Raises KeyboardInterrupt for
        `q`."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            self._look(max(left, 0.0))
            if left <= 0:
                return

    def __call__(self, phase: str, part: float) -> None:
        """Poll the keyboard; see Progress."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._look(0.0)
            self._looked = now

    def clear(self) -> None:
        """Do nothing, because there is no progress line; see Progress."""

    def _look(self, seconds: float) -> None:
        """Wait for a key or a signal for at most `seconds`, and handle it."""
        watched = [self._wake[0], *([] if self._keys is None else [self._keys])]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._wake[0] in ready:
            os.read(self._wake[0], 1 << 12)
        if self._suspended:
            self._suspend()
        if self._terminal_size() != self._size:
            self._draw()
        if self._keys in ready and self._keys is not None:
            pressed = os.read(self._keys, 1 << 10)
            if not pressed:
                self._keys = None
            if b"q" in pressed.lower():
                raise KeyboardInterrupt

    def _on_suspend(self, number: int, frame: Optional[FrameType]) -> None:
        # The suspension is deferred, because the watched process may be stopped for copying at this
        # moment.
        self._suspended = True

    def _suspend(self) -> None:
        self._suspended = False
        self._give_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)  # continues here after SIGCONT
        self._take()
        self._draw()


def _end(number: int, frame: Optional[FrameType]) -> NoReturn:
    raise SystemExit(128 + number)
