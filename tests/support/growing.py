"""Programs that grow round by round, and snapshots of them, for tests of `diff`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Optional

from debuggers import run_cli

from cores import PATIENCE, READY, Running, all_sleep

HOUR = 3600.0
Answer = dict[str, Any]


class Rounds(Running):
    """A program that reads a line from standard input before each round, and prints "ready" after it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Optional[Mapping[str, str]] = None) -> None:
        given, self._input = os.pipe()
        try:
            super().__init__(command, folder, environment, given)
        finally:
            os.close(given)

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        super().__exit__(kind, error, trace)
        os.close(self._input)

    def round(self, line: object = "") -> list[str]:
        """Let the program do one round, with `line` as its input. Return what it printed, without "ready"."""
        before = self._out.stat().st_size
        os.write(self._input, f"{line}\n".encode())
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            with open(self._out) as file:
                file.seek(before)
                text = file.read()
            if text.endswith(READY) and all_sleep(self.pid):
                return text.splitlines()[:-1]
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.folder}: ended with {self._process.returncode}: {(self.folder / 'stderr').read_text()}")
            time.sleep(0.01)
        raise RuntimeError(f"{self.folder}: no end of the round after {PATIENCE} s")

    def snapshot(self, name: str) -> Path:
        """Take a snapshot of the program; return the file, which has this name in its folder."""
        path = self.folder / f"{name}.snapshot"
        run_cli("snapshot", "-o", str(path), "--pid", str(self.pid), check=True)
        return path

    def core(self, name: str, hours: float) -> Path:
        """Write a core of the program with this name. Its time is `hours` hours after the beginning of 2026."""
        made = self.gcore().rename(self.folder / f"{name}.core")
        made_at = 1_767_225_600 + hours * HOUR
        os.utime(made, (made_at, made_at))
        return made


def run_diff(*samples: object, by: str = "") -> tuple[Answer, str]:
    """Run `diff` on these files. Return its JSON, and its text with 120 columns and its lines joined by spaces."""
    words = ["diff", "--limit", "0", *(["--by", by] if by else []), *map(str, samples)]
    answer: Answer = json.loads(run_cli(*words, "--json", check=True).stdout)
    return answer, run_cli(*words, check=True).stdout
