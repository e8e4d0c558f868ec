"""Ruby of several Debian releases, unpacked outside the system; programs that pause; and a PostgreSQL server for programs that need it."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import signal
import struct
import subprocess
import termios
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import debian
from real import free_port

import cores

LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
SYSTEM = "3.1"
"""The version of Debian 12 and of this machine's apt."""

SUITES = {"2.7": "bullseye", "3.1": "bookworm", "3.3": "trixie", "3.4": "experimental"}
READ = ("2.7", "3.1", "3.3", "3.4")
"""The Ruby versions whose heaps findleaks supports."""

PINNED: debian.Pins = {
    ("libruby2.7", "2.7.4-1+deb11u1"): "2d5a451785d356de0bdb4d5efb0d09b7504f3e7df7a0c21f19cdd7f37fb9278a",
    ("ruby2.7", "2.7.4-1+deb11u1"): "35c2d5bae868cc22fa785f0f09bf3f69731fabab26d607721eee0e07f64e15ba",
    ("libruby3.4", "3.4.11-1~exp1"): "90ed169564ef3e3f017345d8452cc4c9a2acf7a0f006dcbceda66b8f3c55872b",
    ("ruby3.4", "3.4.11-1~exp1"): "604cb406af73ac453a9a68c346749bf9fe05556734bee4399e548fe015a3ffa6",
    ("libruby3.3", "3.3.8-2"): "033d7f7359da6353d29e5cb87ef411357d3841c02fd7d1089897653fec665289",
    ("ruby3.3", "3.3.8-2"): "10798ffe8edc86d7f9491655a115049a7a77dfbef5dc909dc13803cbb6c47f9b",
}


@dataclass(frozen=True)
class Ruby:
    """An interpreter: the command that runs it, and variables of its environment."""

    version: str
    words: Sequence[str]
    environment: Mapping[str, str]


@functools.cache
def get(version: str) -> Ruby:
    """Return the interpreter of this version, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RUBY", "GEM_", "BUNDLE", "LD_"))}
    here = shutil.which("ruby")
    if here and subprocess.run([here, "-e", "print RUBY_VERSION"], capture_output=True, text=True).stdout.startswith(version + "."):
        return Ruby(version, (here,), inherited)
    suite, package = SUITES[version], f"libruby{version}"
    folder = debian.cache() / "rubies" / suite
    found = debian.version_of(package, debian.unpack_packages(suite, (f"ruby{version}", package), folder, PINNED, dependencies=True))
    if (package, found) not in PINNED:
        warnings.warn(f"Debian {suite} has {package} {found} now: tested is what it has", stacklevel=2)
    root = folder / "root"
    paths = ":".join(str(root / part) for part in LIBRARIES)
    linker = root / "lib64" / "ld-linux-x86-64.so.2"
    words = (str(linker), "--library-path", paths, str(root / "usr/bin" / f"ruby{version}"), "--disable-gems")
    modules = (root / "usr/lib/ruby" / f"{version}.0", root / "usr/lib/x86_64-linux-gnu/ruby" / f"{version}.0")
    return Ruby(version, words, {**inherited, "RUBYLIB": ":".join(map(str, modules))})


class Pausing(cores.Running):
    """A program that pauses by reading a byte from the FIFO that its first argument names. It prints "ready" before each round."""

    def __init__(self, version: str, program: Path, folder: Path, *arguments: str, **more: str) -> None:
        ruby = get(version)
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / "fifo")
        self._fifo = os.open(folder / "fifo", os.O_RDWR)
        super().__init__([*ruby.words, str(program), str(folder / "fifo"), *arguments], folder, {**ruby.environment, **more})

    def __exit__(self, *error: object) -> None:
        super().__exit__(None, None, None)
        os.close(self._fifo)

    def go(self, reads: int) -> None:
        """Let the program pass a number of pauses, and return when it waits at the next one."""
        os.write(self._fifo, b"." * reads)
        limit = time.monotonic() + cores.PATIENCE
        while time.monotonic() < limit:
            (left,) = struct.unpack("i", fcntl.ioctl(self._fifo, termios.FIONREAD, b"\0" * 4))
            if not left and cores.all_sleep(self.pid):
                time.sleep(0.2)
                if cores.all_sleep(self.pid):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self.folder}: not paused after {cores.PATIENCE} s")

    def said(self) -> list[str]:
        """Return the lines that the program printed."""
        return self._out.read_text().splitlines()


@contextmanager
def postgres(folder: Path, archive: Optional[Path] = None, preload: Optional[Path] = None) -> Iterator[int]:
    """Run a PostgreSQL server with a new, empty cluster until the `with` block ends. Yield its port on 127.0.0.1. `archive` contains the
    programs of PostgreSQL; None: use the installed ones. `preload`: a library for LD_PRELOAD."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs and archive is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    work = Path(subprocess.run(["mktemp", "-d", "/tmp/findleaks-pg-XXXXXX"], check=True, capture_output=True, text=True).stdout.strip())
    shutil.chown(work, "postgres", "postgres")
    plain = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]  # the server refuses to run as root
    data = work / "data"
    server: Optional[subprocess.Popen[bytes]] = None
    try:
        if archive is not None:
            subprocess.run(["tar", "-xf", str(archive), "-C", str(work)], check=True)
            programs = [work / "bin"]
        made = [*plain, str(programs[-1] / "initdb"), "-D", str(data), "-A", "trust", "-N", "-U", "postgres"]
        subprocess.run(made, check=True, capture_output=True, cwd="/", timeout=cores.PATIENCE)
        port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        environment = dict(os.environ)
        if preload is not None:  # copy it to a folder that the server's user may read
            environment["LD_PRELOAD"] = shutil.copy(preload, work)
        with open(folder / "postgres.log", "wb") as log:
            command = [*plain, str(programs[-1] / "postgres"), "-D", str(data), "-p", str(port), *options]
            server = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        _wait_for(port, server, folder / "postgres.log")
        yield port
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # ends the server and its children immediately
            server.wait(cores.PATIENCE)
        shutil.rmtree(work, ignore_errors=True)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + cores.PATIENCE
    while time.monotonic() < limit:
        if "ready to accept connections" in log.read_text():
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL does not serve port {port}: {log.read_text()}")
