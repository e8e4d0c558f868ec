"""The clone of a process. A helper program (clone_holder.py) holds it until it is ended."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from findleaks.errors import TargetError
from findleaks.injection.clonable import Refused, refuse
from findleaks.injection.cloning import Taken
from findleaks.injection.interpreter import interpreter

_LOOK = 0.1  # seconds between two calls of `progress`
_LEAVE = 0.2  # seconds to wait for a helper that ends by itself
_PART = 1 << 20  # bytes read at once

Progress = Callable[[float], None]


class _Helper:
    """The helper program, which reports (word, value) pairs."""

    def __init__(self, pid: int, words: Sequence[str], descriptor: int) -> None:
        python = interpreter()
        if python is None:
            raise refuse(pid, "python3 is not installed")
        here = Path(__file__).resolve().parent
        self._process = subprocess.Popen(
            [python, "-I", str(here / "clone_holder.py"), str(here.parent), str(pid), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._data = bytearray()

    def report(self, progress: Progress) -> tuple[str, Any]:
        """Return the next pair; ("", None) if the helper was killed. An exception that is raised
        during the wait loses no data."""
        output = self._process.stdout
        assert output is not None
        while True:
            size = int.from_bytes(self._data[:8], "little")
            if len(self._data) >= 8 + size > 8:
                word, value = pickle.loads(self._data[8 : 8 + size])
                del self._data[: 8 + size]
                return word, value
            if select.select([output], [], [], _LOOK)[0]:
                part = os.read(output.fileno(), _PART)
                if not part:
                    return "", None
                self._data += part
            progress(0.0)

    def ask_to_end(self) -> None:
        """Close the helper's standard input, which ends the helper."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def leave(self, seconds: Optional[float]) -> None:
        """Stop reading, and wait at most `seconds` for the helper's end."""
        assert self._process.stdout is not None
        self.ask_to_end()
        self._process.stdout.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass


class HeldClone:
    """A clone of process `pid`. `end` must be called to end it. `taken`: the data that was read
    when the clone was created.
    `progress` is called every 0.1 s while the clone is created, and may raise an exception. Raises
    Refused if the process cannot be cloned, and TargetError if findleaks cannot attach to it."""

    def __init__(self, pid: int, progress: Progress) -> None:
        self.pid = pid
        # Seconds of each stop of the process; the last one stops only one thread
        self.stops: list[float] = []
        self.shared = os.memfd_create("findleaks", os.MFD_CLOEXEC)
        self._helper: Optional[_Helper] = None
        self._taken: Optional[Taken] = None
        # Whether a second helper reaps the clone, because the first was killed
        self._reaping = False
        try:
            self._helper = _Helper(pid, [str(self.shared)], self.shared)
            self._taken = self._value(self._helper.report(progress))
            self.stops.append(self.taken.seconds)
        except BaseException:
            self.end()
            raise

    @property
    def taken(self) -> Taken:
        assert self._taken is not None
        return self._taken

    @property
    def holder(self) -> int:
        """Process id of the helper program; 0 once it has ended."""
        return self._helper.pid if self._helper is not None else 0

    def end(self) -> None:
        """End the clone, and let the process reap it. May be called more than once.
        A Ctrl-C that arrives in the meantime is raised at the end. Raises TargetError if the clone
        could not be ended."""
        late: Optional[KeyboardInterrupt] = None
        while self._helper is not None:
            try:
                self._end(self._helper)
            except KeyboardInterrupt as error:
                late = error
        if self.shared >= 0:
            os.close(self.shared)
            self.shared = -1
        if late is not None:
            raise late

    def _end(self, helper: _Helper) -> None:
        if self._taken is None:
            helper.leave(_LEAVE)
            self._helper = None
            return
        helper.ask_to_end()
        report = helper.report(lambda part: None)
        if not report[0] and not self._reaping:  # killed: the clone exits by itself
            helper.leave(None)
            self._reaping = True
            self._helper = _Helper(self.pid, [str(self.taken.local), "reap"], self.shared)
            return
        helper.leave(_LEAVE)
        self._helper = None
        self.stops.append(self._value(report))

    def _value(self, report: tuple[str, Any]) -> Any:
        word, value = report
        if word == "refused":
            raise Refused(value)
        if word == "failed":
            raise TargetError(value)
        if not word:
            raise TargetError(f"pid {self.pid}: cannot be cloned: the helper program was killed")
        return value
