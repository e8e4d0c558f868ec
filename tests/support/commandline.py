"""The command line, each time in a process of its own, forked from one that has imported findleaks: the start of Python and
the imports are most of what a command on a small core costs. Tests of the start itself, of terminals, pipes and signals start
`python -m findleaks`."""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn, Optional

PATIENCE = 600.0
"""Seconds after which a command hangs, on however busy a machine."""
PACKED = 1 << 16
"""Bytes that the words of a command take at most, as they are sent."""
UNLIKE = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION")
"""Variables that pytest changes, and findleaks does not read."""


class Parent:
    """A process that has imported findleaks, and forks one that runs `main` for each command it is asked for."""

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
        """The exit status of `findleaks words…`, which writes its standard output and error to these files."""
        self._asked.settimeout(PATIENCE)
        try:
            message = json.dumps([os.getcwd(), *words]).encode()
            socket.send_fds(self._asked, [message], [output.fileno() for output in outputs])
            return int(self._asked.recv(PACKED))
        except BaseException:
            self.end()  # and what it has forked, which sees that we hang up no more than it would on a plain start
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._asked.close()
        self._process.kill()
        self._process.wait()


_parents: list[Parent] = []
"""None before the first command, then one."""


def run(words: Sequence[str], environment: Mapping[str, str], merged: bool = False) -> subprocess.CompletedProcess[str]:
    """`findleaks words…`, ended; `merged`: standard error is among standard output, in the order written."""
    like = {name: value for name, value in environment.items() if name not in UNLIKE}
    if _parents and not _parents[0].alive:
        _parents.pop().end()
    if not _parents:
        _parents.append(Parent(like))
    with open(os.memfd_create("stdout"), "r+b") as out, open(os.memfd_create("stderr"), "r+b") as err:
        if _parents[0].environment == like and len(json.dumps(words)) < PACKED // 2:
            status = _parents[0].run(words, (out, out if merged else err))
        else:  # a variable may act on Python's start, or on what findleaks does when it is imported
            command = [sys.executable, "-m", "findleaks", *words]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out if merged else err, env=dict(environment), timeout=PATIENCE
            )
            status = done.returncode
        reported = [_written(output) for output in (out, err)]
    return subprocess.CompletedProcess(list(words), status, reported[0], reported[1])


def end() -> None:
    """No more commands are forked."""
    while _parents:
        _parents.pop().end()


def _written(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _serve(asked: socket.socket) -> None:
    """Fork for each command, until nothing asks any more."""
    import findleaks

    for module in pkgutil.walk_packages(findleaks.__path__, "findleaks."):
        if not module.name.startswith(("findleaks.gdb", "findleaks.lldb", "findleaks.__main__")):
            with suppress(ImportError):  # the kernel is no Python module, and what needs a library that is missing is not imported either
                import_module(module.name)
    main = Path(str(findleaks.__file__)).with_name("__main__.py")
    while True:
        message, outputs, _, _ = socket.recv_fds(asked, PACKED, 2)
        if not message:
            return
        folder, *words = json.loads(message)
        child = os.fork()
        if child == 0:
            asked.close()
            os.chdir(folder)
            _command([str(main), *words], outputs)
        for output in outputs:
            os.close(output)
        asked.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _command(words: list[str], outputs: Sequence[int]) -> NoReturn:
    """Run it as `python -m findleaks` does."""
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
        os._exit(status or 0)


if __name__ == "__main__":
    # The folder of this file has modules that are named as ours are, `report` for one.
    sys.path.remove(str(Path(__file__).parent))
    _serve(socket.socket(fileno=int(sys.argv[1])))
