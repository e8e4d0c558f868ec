"""PHP-FPM of Debian and of the npm packages (phps.py): a master with one worker, which runs a script for a request."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import debian
import phps

SUITES = {"8.2": "bookworm", "8.4": "trixie"}
VERSIONS = (*phps.PACKAGES, *SUITES)
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
PATIENCE = 60.0
"""Seconds after which the server is considered to hang."""
BEGIN, PARAMS, STDIN, STDOUT = 1, 4, 5, 6
"""Types of records of FastCGI."""


@contextmanager
def run_request(version: str, folder: Path, source: str) -> Iterator[str]:
    """Run a script as the request of a worker, and yield what it printed up to the line "ready". The request ends with the context.
    Raises debian.PackagesMissing or NodeMissing."""
    program = _program(version)
    script, where, settings = folder / "request.php", folder / "socket", folder / "fpm.conf"
    script.write_text(source)
    pool = f"[www]\nuser = root\ngroup = root\nlisten = {where}\npm = static\npm.max_children = 1\n"
    settings.write_text(f"[global]\ndaemonize = no\nerror_log = {folder / 'log'}\n{pool}")
    with subprocess.Popen([*program, "-n", "-R", "-y", str(settings), "-F"], stderr=subprocess.DEVNULL, start_new_session=True) as master:
        try:
            until = time.monotonic() + PATIENCE
            while not where.exists() and time.monotonic() < until:
                time.sleep(0.02)
            with closing(socket.socket(socket.AF_UNIX)) as connection:
                connection.settimeout(PATIENCE)
                connection.connect(str(where))
                _send(connection, {"SCRIPT_FILENAME": str(script), "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/request"})
                yield _receive(connection)
        finally:
            os.killpg(master.pid, signal.SIGKILL)


def _program(version: str) -> Sequence[str]:
    """Return the command that runs the php-fpm of a version in VERSIONS."""
    if version in phps.PACKAGES:
        folder = phps.get(version)
        return ["/lib64/ld-linux-x86-64.so.2", "--library-path", str(folder / "lib"), str(folder / "php" / "php-fpm")]
    place = debian.cache() / f"php-fpm-{version}"
    debian.unpack_packages(SUITES[version], [f"php{version}-fpm"], place, {}, dependencies=True)
    libraries = [place / "root" / one for one in LIBRARIES]
    loader = next(path for path in (one / "ld-linux-x86-64.so.2" for one in libraries) if path.exists())
    return [str(loader), "--library-path", ":".join(map(str, libraries)), str(place / f"root/usr/sbin/php-fpm{version}")]


def _send(connection: socket.socket, variables: Mapping[str, str]) -> None:
    pairs = b"".join(struct.pack(">BB", len(name), len(value)) + f"{name}{value}".encode() for name, value in variables.items())
    for kind, data in ((BEGIN, struct.pack(">HB5x", 1, 0)), (PARAMS, pairs), (PARAMS, b""), (STDIN, b"")):
        connection.sendall(struct.pack(">BBHHBx", 1, kind, 1, len(data), 0) + data)


def _receive(connection: socket.socket) -> str:
    """Return the output of the request up to the line "ready"."""
    output = ""
    with connection.makefile("rb") as stream:
        while "ready\n" not in output:
            _, kind, _, length, padding = struct.unpack(">BBHHBx", stream.read(8))
            data = stream.read(length + padding)[:length]
            assert kind == STDOUT, (kind, data, output)
            output += data.decode()
    return output
