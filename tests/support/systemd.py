"""systemd's handling of crashes, from Debian's package: systemd-coredump, the journal, and coredumpctl.

python systemd.py ROOT PID:CORE… -- COMMAND…

This program runs in its own mount namespace (`unshare -m`), where /run and the folders of cores and of the journal are empty. For each
crash it runs the command that the kernel runs for the pattern "|/lib/systemd/systemd-coredump %P %u %g %s %t %c %h", with the core on
standard input while the process still exists. Then it runs COMMAND, and ends with its status.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import commandline
import debian

PACKAGES = ("systemd", "systemd-coredump", "libsystemd-shared")
COREDUMPS = "/var/lib/systemd/coredump"
SOCKET = "/run/systemd/coredump"  # the socket of systemd-coredump.socket
UNLIMITED = str((1 << 64) - 1)


def tree() -> Path:
    """Unpack the packages, with a bin/coredumpctl that runs from the unpacked tree, and return the tree. Raises debian.PackagesMissing."""
    folder = debian.cache() / "systemd"
    debian.unpack_packages("bookworm", PACKAGES, folder, {}, dependencies=True)
    root = folder / "root"
    wrapper = folder / "bin" / "coredumpctl"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(_command(root, "usr/bin/coredumpctl"))} "$@"\n')
    wrapper.chmod(0o755)
    return root


def run_after_crashes(crashes: Sequence[tuple[int, Path]], command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Return the output of a command after these processes have crashed with these cores."""
    root = tree()
    path = f"{root.parent / 'bin'}:{os.environ['PATH']}"
    words = ["unshare", "-m", "--propagation", "private", sys.executable, __file__, root, *(f"{pid}:{core}" for pid, core in crashes)]
    return subprocess.run(
        [*map(str, words), "--", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=commandline.PATIENCE,
        env={**os.environ, "PATH": path},
    )


def _command(root: Path, program: str) -> list[str]:
    """Return the command that runs a program of the tree with the tree's libraries."""
    libraries = ":".join(
        str(root / folder) for folder in ("usr/lib/x86_64-linux-gnu/systemd", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    )
    return [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, str(root / program)]


def _crash(root: Path, pid: int, core: Path) -> None:
    """Handle a crash, and wait until the core is stored."""
    words = [str(pid), "0", "0", "6", str(int(time.time())), UNLIMITED, "host"]
    handler = _command(root, "lib/systemd/systemd-coredump")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(SOCKET)
        listening.listen(1)
        with open(core, "rb") as data:
            kernel = subprocess.Popen([*handler, *words], stdin=data)  # this process sends the core to the service
        connection, _ = listening.accept()
        with connection:  # systemd-coredump@.service gets the connection as descriptor 3
            script = 'exec 3<&"$0" && LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
            subprocess.run(["bash", "-c", script, str(connection.fileno()), *handler], pass_fds=[connection.fileno()], check=True)
        if kernel.wait():
            raise RuntimeError(f"systemd-coredump: status {kernel.returncode}")
    os.unlink(SOCKET)


def main() -> int:
    root, words = Path(sys.argv[1]), sys.argv[2:]
    at = words.index("--")
    for folder in ("/run", COREDUMPS, "/var/log/journal"):
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    for folder in ("/run/systemd/journal", "/run/log/journal"):
        os.makedirs(folder)
    journal = subprocess.Popen(_command(root, "lib/systemd/systemd-journald"), stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + commandline.PATIENCE
        while not os.path.exists("/run/systemd/journal/socket") and time.monotonic() < limit:
            time.sleep(0.02)
        for word in words[:at]:
            pid, _, core = word.partition(":")
            _crash(root, int(pid), Path(core))
        subprocess.run([*_command(root, "bin/journalctl"), "--sync"], check=True)
        return subprocess.run(words[at + 1 :]).returncode
    finally:
        journal.kill()
        journal.wait()


if __name__ == "__main__":
    sys.exit(main())
