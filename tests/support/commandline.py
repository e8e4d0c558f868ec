"""Run the command line in processes that are forked from one that has imported findleaks. Python's start and the imports are most of the
time of a command on a small core. Tests of the start itself, of terminals, pipes and signals start `python -m findleaks` instead.

Commands on the same cores run in one process. It keeps the cores open, and the results computed from them, as debuggers do. Such processes
are kept for the last few sets of cores. A command on a live process, or with a different environment, gets its own process.
"""

from __future__ import annotations

import ctypes
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Optional

PATIENCE = 600.0
"""Seconds after which a command is considered to hang, even on a busy machine."""
PACKED = 1 << 16
"""The maximum size in bytes of a command's arguments when they are sent."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
KEPT = 3
"""The number of sets of cores that are kept open. Some tests alternate between a few sets."""
UNLIKE = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION")
"""Variables that pytest changes, and that findleaks does not read."""


class Parent:
    """A process that has imported findleaks, and that forks a child which runs `main` for each requested command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._asked, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=self.environment,
            )

    def run(self, words: Sequence[str], outputs: Sequence[IO[bytes]]) -> int:
        """Run `findleaks words…` with its standard output and error in these files; return the exit status."""
        self._asked.settimeout(PATIENCE)
        try:
            message = json.dumps([os.getcwd(), *words]).encode()
            socket.send_fds(self._asked, [message], [output.fileno() for output in outputs])
            return int(self._asked.recv(PACKED))
        except BaseException:
            self.end()  # also ends its forked children, which would otherwise not notice that this side closed the connection
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._asked.close()
        self._process.kill()
        self._process.wait()


_parents: list[Parent] = []
"""None before the first command; a Parent afterwards."""


def run(words: Sequence[str], environment: Mapping[str, str], merged: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `findleaks words…` to its end. `merged`: standard error is part of standard output, in the order of writing."""
    like = {name: value for name, value in environment.items() if name not in UNLIKE}
    if _parents and not _parents[0].alive:
        _parents.pop().end()
    if not _parents:
        _parents.append(Parent(like))
    with open(os.memfd_create("stdout"), "r+b") as out, open(os.memfd_create("stderr"), "r+b") as err:
        if _parents[0].environment == like and len(json.dumps(words)) < PACKED // 2:
            status = _parents[0].run(words, (out, out if merged else err))
        else:  # a variable may affect Python's start, or findleaks at import time
            command = [sys.executable, "-m", "findleaks", *words]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out if merged else err, env=dict(environment), timeout=PATIENCE
            )
            status = done.returncode
        reported = [_written(output) for output in (out, err)]
    return subprocess.CompletedProcess(list(words), status, reported[0], reported[1])


def end() -> None:
    """End the process that forks commands."""
    while _parents:
        _parents.pop().end()


def _written(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _serve(asked: socket.socket) -> None:
    """Fork for each requested command, until the other side closes the connection."""
    import findleaks

    for module in pkgutil.walk_packages(findleaks.__path__, "findleaks."):
        if not module.name.startswith(("findleaks.gdb", "findleaks.lldb", "findleaks.__main__")):
            with suppress(ImportError):  # not a module, or one that needs a missing library
                import_module(module.name)
    main = str(Path(str(findleaks.__file__)).with_name("__main__.py"))
    kept: dict[Cores, Keeper] = {}
    while True:
        message, outputs, _, _ = socket.recv_fds(asked, PACKED, 2)
        if not message:
            return
        folder, *words = json.loads(message)
        os.chdir(folder)
        cores = _cores(words)
        keeper = kept.pop(cores, None) or Keeper(main, kept.values())
        status = keeper.run(message, outputs)
        for output in outputs:
            os.close(output)
        if not cores or status is None:
            ended = keeper.end()
            status = ended if status is None else status
        else:
            kept[cores] = keeper  # move it to the end of the order, so that it is ended last
        paths = [path for path, _ in cores]
        changed = [one for one in kept if one != cores and [path for path, _ in one] == paths]
        for one in {*changed, *[*kept][:-KEPT]}:
            kept.pop(one).end()
        asked.send(str(status).encode())


Cores = tuple[tuple[str, tuple[int, ...]], ...]
"""The path of each core, with numbers that change if a file near the core changes."""


def _cores(words: Sequence[str]) -> Cores:
    """Return the files that a command reads. Return () if the command needs its own process: it reads a process, or FINDLEAKS_TEST_FRESH is
    1."""
    if os.environ.get("FINDLEAKS_TEST_FRESH") == "1" or "--pid" in words:
        return ()
    return tuple(_stamped(os.path.abspath(word)) for word in words if os.path.isfile(word))


def _stamped(path: str) -> tuple[str, tuple[int, ...]]:
    folder = os.path.dirname(path)
    return path, tuple(part for place in (folder, os.path.dirname(folder)) for part in _stamps(place))


def _stamps(folder: str) -> list[int]:
    """Return numbers that change if a file in this folder changes: tests strip programs and libraries near the core."""
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.is_file(follow_symlinks=False))
    return [part for _, one in found for part in (one.st_ino, one.st_size, one.st_mtime_ns)]


class Keeper:
    """A process that runs commands on the same cores, and keeps them open."""

    def __init__(self, main: str, others: Iterable[Keeper]) -> None:
        self._asked, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for one in (self, *others):
                one._asked.close()  # otherwise the child keeps a copy of this descriptor, and the process does not see it close
            _keep(its, main)
            os._exit(0)
        its.close()

    def run(self, message: bytes, outputs: Sequence[int]) -> Optional[int]:
        """Run a command; return its exit status, or None if the process ended."""
        socket.send_fds(self._asked, [message], list(outputs))
        answer = self._asked.recv(PACKED)
        return int(answer) if answer else None

    def end(self) -> int:
        """End the process; return its exit status."""
        self._asked.close()
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _keep(asked: socket.socket, main: str) -> None:
    """Run commands until the socket is closed. Cores stay open between commands."""
    from findleaks import cli

    cli._open = opening_once(cli._open)
    while True:
        message, outputs, _, _ = socket.recv_fds(asked, PACKED, 2)
        if not message:
            return
        folder, *words = json.loads(message)
        os.chdir(folder)
        asked.send(str(_command([main, *words], outputs)).encode())


def opening_once(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `cli._open` that opens each core only once."""
    kept: dict[tuple[str, ...], Any] = {}

    def open_(args: Any, core: str, progress: Any) -> Any:
        key = os.path.abspath(core), args.exe, args.sysroot
        if not core or not os.path.isfile(core):
            return opened(args, core, progress)
        if key not in kept:
            kept[key] = opened(args, core, progress)
            kept[key].close = lambda: None
        kept[key].progress = progress
        return kept[key]

    return open_


def _command(words: list[str], outputs: Sequence[int]) -> int:
    """Run a command and return the exit status that `python -m findleaks` would have."""
    status: Optional[int] = 1
    try:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
            os.close(output)
        sys.argv = words
        from findleaks.cli import main

        status = main()
    except SystemExit as end:
        status = end.code if end.code is None or isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return status or 0


if __name__ == "__main__":
    # Some modules in this file's folder have the same names as findleaks' modules, such as `report`.
    sys.path.remove(str(Path(__file__).parent))
    _serve(socket.socket(fileno=int(sys.argv[1])))
