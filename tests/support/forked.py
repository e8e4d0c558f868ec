"""The program tests/programs/forked.c, whose threads notice if they are disturbed."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import building
from counting import Counter

THREADS = ("registers", "malloc", "fork", "sleep", "read", "futex", "epoll", "sigsuspend")


def build(folder: Path) -> Path:
    return building.compile_program(folder, "forked.c", "-O1", "-g", "-pthread")


class Watched(Counter):
    """The running program, and the state of its process that must not change."""

    def words(self, name: str, count: int = len(THREADS)) -> list[int]:
        with open(f"/proc/{self.pid}/mem", "rb") as file:
            data = os.pread(file.fileno(), 8 * count, self.at[name])
        return list(struct.unpack(f"<{count}q", data))

    def looks(self) -> dict[str, object]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        # SigBlk is per thread, and changes briefly in system calls such as sigsuspend.
        kept = ("SigPnd", "ShdPnd", "SigIgn", "SigCgt", "Threads", "TracerPid", "Seccomp", "NoNewPrivs")
        status = {line.partition(":")[0]: line for line in lines if line.startswith(kept)}
        descriptors = f"/proc/{self.pid}/fd"
        return {**status, "files": {name: os.readlink(f"{descriptors}/{name}") for name in os.listdir(descriptors)}}

    def all_children(self) -> list[str]:
        tasks = f"/proc/{self.pid}/task"
        return [child for tid in os.listdir(tasks) for child in Path(f"{tasks}/{tid}/children").read_text().split()]

    def unharmed(self) -> bool:
        return not self.all_children() and self.words("foreign", 1) == [0] and not any(self.words("bad")) and self.runs()


@contextmanager
def make_starter(program: Path) -> Iterator[Callable[..., Watched]]:
    """Return a function that starts the program; each process is ended at the end of the `with` block."""
    made: list[Watched] = []

    def make(*how: str) -> Watched:
        made.append(Watched([str(program), *how]))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.end()
