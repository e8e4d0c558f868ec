"""GDB and LLDB of other Debian releases, with findleaks loaded.

Each is unpacked with its dependencies and started through its own dynamic linker. It thus uses its own libc and its own Python, and the
programs that it starts are not affected.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
from debuggers import GDB_LOADER, LLDB_LOADER, PATIENCE, Terminal, environment

SUITES = {
    "gdb-10": "bullseye",
    "gdb-13": "bookworm",
    "gdb-16": "trixie",
    "gdb-18": "sid",
    "lldb-14": "bookworm",
    "lldb-16": "bookworm",
    "lldb-19": "bookworm",
    "lldb-23": "sid",
}
"""The versions of debuggers in each Debian suite. sid changes: `get` then warns, and tests run with sid's current version."""

GDBS = tuple(name for name in SUITES if name.startswith("gdb"))
LLDBS = tuple(name for name in SUITES if name.startswith("lldb"))

PINNED: debian.Pins = {
    ("gdb", "10.1-1.7"): "dbd398f477650025726f80b25c1bd6b94728fa10b8fa9ad54541b57349ef46b2",
    ("gdb", "13.1-3"): "65e29803ae582f0094c0412eca8032f2a5a1188664c59e14c35b9528fc81a9a5",
    ("gdb", "16.3-1"): "f0cd9b3e7b47685cbc43ebfe3207760830cb7b570e615daee6dc91e50040c127",
    ("gdb", "18.1-3"): "d03df8373613aabe97f84e19e3d853145486e9cda4a5a9aeebfd73b1857a6d8e",
    ("lldb-14", "1:14.0.6-12"): "7a7e45b9b998ea03a13f337589a8e9d7b1fe2db05de9abc26f21608505f319dc",
    ("lldb-16", "1:16.0.6-15~deb12u1"): "8ac8ee83213487ce7d59eaa9eb32326db1260e326c37081cb741e3e57fc8fbd2",
    ("lldb-19", "1:19.1.7-3~deb12u1"): "d6b5c373c37f7452e2a05004e4ed03a615abc1f786d4e637e07d572a0072ee45",
    ("lldb-23", "1:23.1.4-2"): "18d86ef857d824eb088a6380f1c764716c6889e9ca5bbb10387c6e86de224701",
    ("liblldb-14", "1:14.0.6-12"): "bcaad276296f94a3c9af0796cbccbb0b51c8c9f68e130c6f3bacaef86bce5fda",
    ("liblldb-16", "1:16.0.6-15~deb12u1"): "b060ce59747581e6d783afab8f8b8c1ce274aba699651749d774200bd3fe6f0c",
    ("liblldb-19", "1:19.1.7-3~deb12u1"): "8c76986cfab12e812a7586cc116325e56eebb3fe7bb9c135eeda602b28caddea",
    ("liblldb-23", "1:23.1.4-2"): "8dfc328c9c2396f10e2ca181937b61c2e4e23c6d57d6be2b9c92b4040b898df9",
    ("python3-lldb-14", "1:14.0.6-12"): "afc1024971ca02fd7d9c3f48c7ee998f4e68eac57919274200b31db07021a670",
    ("python3-lldb-16", "1:16.0.6-15~deb12u1"): "dc1950f433f07d0f9ee7e42ededc2fb61acc69cf91bec0245f016eab14186c5d",
    ("python3-lldb-19", "1:19.1.7-3~deb12u1"): "466f509d83cb790eb88afeabfda4e9f122fc5944e536720c0dd195b0f2611a19",
    ("python3-lldb-23", "1:23.1.4-2"): "caaf4d884dcd61ebf8287346886d6845ed81318b531c8310e2153edf24e3e7ce",
}
"""SHA-256 of the debuggers by package and version. Their dependencies have no fixed versions: each suite provides its current versions."""


@dataclass(frozen=True)
class Debugger:
    """A debugger that is ready to start. `version`: of its package; `variables`: environment of its Python and its server."""

    name: str
    version: str
    words: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def is_gdb(self) -> bool:
        return self.name.startswith("gdb")

    def run(self, commands: Sequence[str], *, exe: str = "", core: str = "", pid: int = 0) -> str:
        """Run these commands with findleaks loaded, on a core or a process, and return the output with standard error."""
        words, given = self._loaded(), ""
        if self.is_gdb:
            words += ["-batch", *(word for command in commands for word in ("-ex", command))]
        else:  # on standard input: with -o, LLDB skips all commands after one that fails
            given = "".join(command + "\n" for command in commands)
        return self._run([*words, *self._on(exe, core, pid)], given)

    def terminal(self, *, exe: str = "", core: str = "", pid: int = 0, **more: str) -> Terminal:
        """Start it in a terminal, and wait for its prompt."""
        made = Terminal([*self._loaded(), *self._on(exe, core, pid)], **self.variables, **more)
        made.run(f"{'python' if self.is_gdb else 'script'} print('is-' + 'ready')", "is-ready")
        return made

    def gcore(self, pid: int, path: Path) -> Path:
        """Write a core of a process with this GDB; the process continues to run."""
        reported = self._run([*self.words, "-nx", "-batch", "-ex", f"gcore {path}", "-p", str(pid)], "")
        if not path.exists():
            raise RuntimeError(f"{self.name} made no core: {reported}")
        return path

    def _loaded(self) -> list[str]:
        if self.is_gdb:
            return [*self.words, "-nx", "-q", "-ex", f"source {GDB_LOADER}"]
        return [*self.words, "-x", "--no-use-colors", "-O", f"command script import {LLDB_LOADER}"]

    def _on(self, exe: str, core: str, pid: int) -> list[str]:
        words = [exe] if exe else []
        if core:
            words += ["-c", core]
        if pid:
            words += ["-p", str(pid)]
        return words

    def _run(self, words: Sequence[str], given: str) -> str:
        done = subprocess.run(
            list(words),
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=2 * PATIENCE,
            env=environment(**self.variables),
        )
        return done.stdout


@functools.cache
def get(name: str) -> Debugger:
    """Return this debugger, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    packages = (name.split("-")[0],) if name.startswith("gdb") else (name, f"python3-{name}")
    folder = debian.cache() / "debuggers" / name
    debs = debian.unpack_packages(SUITES[name], packages, folder, PINNED, dependencies=True)
    version = debian.version_of(packages[0], debs)
    if version.rpartition(":")[2].split(".")[0] != name.split("-")[1]:
        warnings.warn(f"Debian {SUITES[name]} has {packages[0]} {version} now: tested is what it has", stacklevel=2)
    return (_gdb if name.startswith("gdb") else _lldb)(name, version, folder / "root")


def _started(root: Path, program: Path, *more: Path) -> tuple[str, ...]:
    """Return the command that starts a program of this tree."""
    libraries = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu", *more]
    return (str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", os.pathsep.join(map(str, libraries)), str(program))


def _gdb(name: str, version: str, root: Path) -> Debugger:
    words = (*_started(root, root / "usr/bin/gdb"), "--data-directory", str(root / "usr/share/gdb"))
    return Debugger(name, version, words, {"PYTHONHOME": str(root / "usr"), "PYTHONDONTWRITEBYTECODE": "1"})


def _lldb(name: str, version: str, root: Path) -> Debugger:
    llvm = root / "usr/lib" / name.replace("lldb", "llvm")
    # Resolve the path of LLDB's modules: in LLDB 14 and 16, the folder that LLDB itself puts on sys.path has a broken link.
    modules = next(path.parent for path in sorted(llvm.glob("lib/python3.*/*-packages/lldb")))
    server = root.parent / "lldb-server"
    script = f'#!/bin/sh\nexec {shlex.join(_started(root, llvm / "bin/lldb-server", llvm / "lib"))} "$@"\n'
    with debian.hold_lock(root.parent):
        if not server.exists() or server.read_text() != script:
            part = server.with_suffix(".part")
            part.write_text(script)
            part.chmod(0o755)
            part.rename(server)
    variables = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(modules), "LLDB_DEBUGSERVER_PATH": str(server)}
    return Debugger(name, version, _started(root, llvm / "bin/lldb", llvm / "lib"), {**variables, "PYTHONDONTWRITEBYTECODE": "1"})
