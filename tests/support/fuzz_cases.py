"""Prepare the fuzzing corpus: for each sound core, record the words that findleaks reads and the resources that its commands use."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import fuzz_corpus
import trials
from fuzz_files import Subject
from mutations import Edit, Mutation, apply
from trials import COMMANDS, OF_SAVED, Asked, Limits, Outcome

READING = ("find", "caches --by-thread", "roots", "verify", "verdict", "runtime", "scopes", "stacks")
"""Commands that together execute all readers."""
_KEPT = 20_000


class Found(NamedTuple):
    """A problem that a damaged core caused, and the edits that reproduce it."""

    name: str
    seed: int
    problem: str
    commands: list[list[str]]
    edits: list[Edit]


class Case:
    """A file of the corpus, with a copy in `folder` that is damaged and repaired for each trial."""

    def __init__(self, name: str, folder: Path, reading: Sequence[str] = READING) -> None:
        """`reading`: commands. Words that they read in the sound core are damaged more often than other words."""
        self.name, self.folder = name, folder
        self.sound = fuzz_corpus.get(name)
        self.commands = OF_SAVED.get(name, COMMANDS)
        self.asked, self.path = self._places(folder)
        self.core = Subject(self.sound, self._focus(reading))
        self._known: dict[str, Limits] = {}
        self._add_clean(self.asked)
        self.fifo = folder / "fifo"
        if not self.fifo.exists():
            os.mkfifo(self.fifo)
        self._copy()

    def _places(self, folder: Path) -> tuple[Asked, Path]:
        """Return the arguments of the commands, and the file that is damaged."""
        beside = self.sound.with_name("sound.core")
        if self.name in fuzz_corpus.PROGRAMS:  # found next to the core, before the path that the core records
            program = folder / self.name / str(beside.with_name("mutated")).lstrip("/")
            program.parent.mkdir(parents=True, exist_ok=True)
            more = ("--sysroot", str(folder / self.name))
            return Asked(beside, folder / f"{self.name}.page", beside, more), program
        if self.name in fuzz_corpus.SAVED:
            saved = folder / f"{self.name}{fuzz_corpus.SAVED[self.name]}"
            return Asked(beside, saved, beside), saved
        core = folder / f"{self.name}.core"
        return Asked(core, core, self.sound), core

    def _add_clean(self, asked: Asked) -> None:
        """Save a snapshot of the sound core. Commands compare a snapshot of the damaged core with it."""
        clean = self.sound.with_name("clean.snapshot")
        if self.commands is COMMANDS:
            if not clean.exists():
                trials.run(asked._replace(core=asked.sound), [["snapshot", "-o", str(clean)]])
            shutil.copy(clean, f"{asked.page}.clean")

    def trial(self, seed: int, count: int = 4) -> tuple[Outcome, Found]:
        """Damage the core, run commands on it, and repair it."""
        mutation = Mutation(self.core, seed, (str(self.fifo), "/dev/zero", "/dev/tty", "/dev/stdin", "/dev/ptmx"))
        rng = random.Random(seed)
        commands = trials.choose_commands(rng, self._addresses(mutation), count, self.commands)
        outcome = self.run(mutation.edits, commands)
        return outcome, Found(self.name, seed, outcome.problem, commands, mutation.edits)

    def run(self, edits: Sequence[Edit], commands: Sequence[Sequence[str]]) -> Outcome:
        """Return the problem of these commands on the edited core. Their limits come from the sound core, and are measured only for
        commands that took long."""
        outcome = self._once(edits, commands, Limits(_slower(trials.HANGS), _slower(trials.MUCH)))
        if outcome.seconds <= _slower(trials.FLOOR) and outcome.memory <= _slower(trials.LITTLE):
            return outcome
        return self._once(edits, commands, self._limits(commands))

    def _once(self, edits: Sequence[Edit], commands: Sequence[Sequence[str]], limits: Limits) -> Outcome:
        undo = apply(self.path, edits)
        try:
            return trials.run(self.asked, commands, limits)
        finally:
            if undo is None or self.commands is not COMMANDS:  # some commands write to the file
                self._copy()
            else:
                apply(self.path, undo)

    def shrunk(self, found: Found) -> Found:
        """Return the smallest set of commands and edits that has a problem of the same kind."""
        wanted = kind(found.problem)

        def still(edits: Sequence[Edit], commands: Sequence[Sequence[str]]) -> bool:
            return kind(self.run(edits, commands).problem) == wanted

        commands = next(([one] for one in found.commands if still(found.edits, [one])), found.commands)
        edits = list(found.edits)
        size = max(1, len(edits) // 2)
        while True:
            at = 0
            while at < len(edits):
                fewer = edits[:at] + edits[at + size :]
                if still(fewer, commands):
                    edits = fewer
                else:
                    at += size
            if size == 1:
                return found._replace(commands=commands, edits=edits)
            size = max(1, size // 2)

    def _addresses(self, mutation: Mutation) -> list[int]:
        return [mutation.address() for _ in range(8)] + [mutation.word(0)]

    def _limits(self, commands: Sequence[Sequence[str]]) -> Limits:
        """Return the limits of commands, from what they take on the sound core."""
        key = " ".join(word for words in commands for word in words)
        if key not in self._known:
            sound = trials.run(self.asked, commands)
            if self.commands is not COMMANDS:
                self._copy()
            seconds = max(_slower(trials.FLOOR), trials.TIMES * sound.seconds)
            self._known[key] = Limits(seconds, trials.MEMORY * sound.memory + _slower(trials.SPARE))
        return self._known[key]

    def _copy(self) -> None:
        subprocess.run(["cp", "--sparse=auto", self.sound, self.path], check=True)

    def _focus(self, lines: Sequence[str]) -> list[int]:
        """Return the words that these commands read, if they are in the core. They are determined only once."""
        kept = self.sound.with_name("focus.json")
        state = zlib.crc32(repr((_state(self.sound), lines)).encode())
        if kept.exists():
            known: dict[str, list[int]] = json.loads(kept.read_text())
            if str(state) in known:
                return known[str(state)]
        core = Subject(self.sound)
        read = trials.Reads().of(self.sound, [line.split() for line in lines]) if core.parts else []
        found = [at for at in read if core.offset(at)]
        core.close()
        found = random.Random(0).sample(found, k=min(_KEPT, len(found)))
        kept.write_text(json.dumps({state: found}))
        return found


def _state(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _slower(amount: int) -> int:
    """Return higher limits for builds with sanitizers."""
    return amount * (trials.SLOWER if trials.SANITIZED else 1)


def kind(problem: str) -> str:
    """Return a key that is equal for two reports of one problem: the last line, and where the exception is raised."""
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    places = [
        line.split(" in ")[0]
        for line in lines
        if line.startswith('File "') and "findleaks" not in line.split('"')[1].rsplit("/", 1)[0][-5:]
    ]
    last = lines[-1].split(":")[0] if lines else ""
    return " ".join([last, *places[-1:]])
