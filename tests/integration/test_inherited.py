"""Inherited state does not change the results of findleaks: ignored and blocked signals, limits, umask, home, locale."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import environment
from grows import FINDLEAKS

from cores import Running

SOURCE = Path(__file__).parents[1] / "programs" / "help_examples.c"
ANY = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


def ignore(*numbers: signal.Signals) -> Callable[[], object]:
    return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]


def few_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard))


PROCESSES: dict[str, Callable[[], object]] = {
    "nohup": ignore(signal.SIGHUP),
    "background": ignore(signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP),
    "terminated": ignore(signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1),
    "no children": ignore(signal.SIGCHLD),
    "all blocked": lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ANY),
    "few files": few_files,
    "umask": lambda: os.umask(0o777),
}
"""Settings of a parent process that findleaks inherits."""

ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "no home": {"HOME": None, "XDG_CACHE_HOME": None},
    "no such home": {"HOME": "/proc/1/none"},
    "locale": {"LC_ALL": "tr_TR.ISO-8859-9", "LANG": "xx_YY", "TZ": "Nowhere/None"},
}

COMMANDS = (["track", "--for", "0.5", "--limit", "1"], ["count", "malloc", "--events", "5"], ["snapshot", "-o", "kept.snapshot"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("inherited")
    subprocess.run(["gcc", "-g", "-O1", "-o", folder / "program", SOURCE], check=True)
    with Running([str(folder / "program")], folder) as run:
        yield run


def check(running: Running, folder: Path, known: dict[str, str], before: Callable[[], object] | None) -> None:
    """Check the commands that stop, change and keep a process."""
    for words in COMMANDS:
        command = [*FINDLEAKS, *words, "--pid", str(running.pid)]
        done = subprocess.run(
            command,
            cwd=folder,
            env=known,
            preexec_fn=before,
            restore_signals=False,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), words
        if words[0] == "track":
            assert "keeps running" in done.stdout
        elif words[0] == "count":
            assert "s: 5 calls, 1 stack\n" in done.stdout
    assert (folder / "kept.snapshot").stat().st_size > 10_000


RARE = ("terminated", "umask", "no such home")
"""Run by `make test-matrix`."""


def cases(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.matrix] if name in RARE else []) for name in names]


@pytest.mark.parametrize("how", cases(PROCESSES))
def test_inherited_process_state(how: str, running: Running, tmp_path: Path) -> None:
    check(running, tmp_path, environment(), PROCESSES[how])


@pytest.mark.parametrize("how", cases(ENVIRONMENTS))
def test_inherited_environment(how: str, running: Running, tmp_path: Path) -> None:
    changed = {**environment(), **ENVIRONMENTS[how]}
    check(running, tmp_path, {name: value for name, value in changed.items() if value is not None}, None)


def test_no_more_file_descriptors(running: Running, tmp_path: Path) -> None:
    """With a low hard limit, findleaks in GDB cannot open a file. The error says so, and the process is unchanged."""
    done = subprocess.run(
        [*FINDLEAKS, "count", "malloc", "--for", "0.5", "--pid", str(running.pid)],
        cwd=tmp_path,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2
    assert "too many open files: raise the limit (ulimit -n)" in done.stderr
    assert "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text()
