"""A program that counts for as long as it runs, in several unusual states. Tests can see whether a tracer holds it, and whether it
continues to run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cores import PATIENCE
from findleaks.target.ptrace import state, tasks

COUNTER = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
volatile long ticks, signals, born;
static void *short_lived(void *x) { __atomic_add_fetch(&born, 1, __ATOMIC_RELAXED); usleep(500); return x; }
static void *makes_threads(void *x) {
  for (;;) { pthread_t id; if (!pthread_create(&id, 0, short_lived, 0)) pthread_detach(id); usleep(300); }
  return x;
}
static void *waits(void *x) { for (;;) pause(); return x; }
static void *ticks_on(void *x) { for (;;) { ticks++; usleep(1000); } return x; }
static void on_signal(int number) { signals++; (void)number; }
int main(int argc, char **argv) {
  pthread_t id;
  char *how = argc > 1 ? argv[1] : "";
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &action, 0);
  if (strstr(how, "births")) for (int i = 0; i < 3; i++) pthread_create(&id, 0, makes_threads, 0);
  if (strstr(how, "crowd")) for (int i = 0; i < 200; i++) pthread_create(&id, 0, waits, 0);
  if (strstr(how, "shadow")) {
    char *shadow = mmap(0, 4L << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    shadow[2L << 40] = 'x';
    shadow[(2L << 40) + (40 << 20)] = 'y';
    printf("shadow %p\n", (void *)shadow);
  }
  pthread_create(&id, 0, ticks_on, 0);
  while (!ticks) usleep(100);  // it counts from now on
  printf("ticks %p\nsignals %p\n", (void *)&ticks, (void *)&signals);
  fflush(stdout);
  if (strstr(how, "orphan")) pthread_exit(0);
  if (strstr(how, "vfork")) { if (vfork() == 0) { for (;;) pause();; } }
  for (;;) pause();
}
"""


class Counter:
    """The counting program: `ticks` is at least 1, and increases while the program runs."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        assert self.process.stdout is not None
        self.at = {}
        while "signals" not in self.at:
            name, address = self.process.stdout.readline().split()
            self.at[name] = int(address, 16)

    def read(self, name: str) -> int:
        thread = next(tid for tid in (self.pid, *map(int, os.listdir(f"/proc/{self.pid}/task"))) if state(self.pid, tid) not in "ZX")
        with open(f"/proc/{thread}/mem", "rb") as file:
            return int.from_bytes(os.pread(file.fileno(), 8, self.at[name]), "little")

    def runs(self) -> bool:
        before = self.read("ticks")
        return wait_for(lambda: self.read("ticks") > before)

    def stands(self) -> bool:
        before = self.read("ticks")
        time.sleep(0.05)
        return self.read("ticks") == before

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def is_suspended(pid: int) -> bool:
    """Return whether all threads have stopped: SIGSTOP stops them one after the other."""
    return {state(pid, tid) for tid in tasks(pid)} == {"T"}


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert wait_for(lambda: is_suspended(pid))


def wait_for(what: Callable[[], bool]) -> bool:
    limit = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def compile_sources(folder: Path, **sources: str) -> Path:
    """Compile each of `sources` (C code by name) to a program with this name in `folder`, and return the folder."""
    for name, source in sources.items():
        (folder / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-O1", "-g", "-pthread", "-o", folder / name, folder / f"{name}.c"], check=True)
    return folder


@contextmanager
def counters(program: Path) -> Iterator[Callable[..., Counter]]:
    """Return a function that starts counters; each is ended at the end of the `with` block."""
    made: list[Counter] = []

    def make(how: str = "") -> Counter:
        made.append(Counter([str(program), how]))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.end()
