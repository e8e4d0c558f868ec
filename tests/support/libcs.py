"""Debian's glibc of several releases, unpacked outside the system, and programs linked against them.

A program is linked with the unpacked tree as sysroot, with its dynamic linker and with an rpath into the tree, so that it starts like any
other program. (If it were started with `ld.so --library-path …`, its core would list no libraries.)
"""

from __future__ import annotations

import functools
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian

PACKAGES = ("libc6", "libc6-dev", "linux-libc-dev")

OF_THEIR_TIME = {"bullseye": ("libgcc-10-dev",)}
"""Static programs also contain part of libgcc. The libgcc of newer releases needs functions that libc 2.31 does not have."""

SUITES = {"2.31": "bullseye", "2.36": "bookworm", "2.41": "trixie", "2.43": "sid"}
"""The Debian suite of each glibc. sid changes: `get` then warns, and tests run with sid's current version."""

PINNED: debian.Pins = {
    ("libc6", "2.31-13+deb11u11"): "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282",
    ("libc6-dev", "2.31-13+deb11u11"): "e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3",
    ("libc6", "2.36-9+deb12u14"): "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf",
    ("libc6-dev", "2.36-9+deb12u14"): "0218fc2befcd784c1b0c6292c0a137ce89fad054efaa579ad083bee0f2c01aae",
    ("libc6", "2.41-12+deb13u4"): "967aa62605721081c3eb2a17650611a792aa802d76a6511d1840242623d204c9",
    ("libc6-dev", "2.41-12+deb13u4"): "1fda734dabcd80b77266a09ab62b0f1e3e16d8091db62899890b2200745632a2",
    ("libc6", "2.43-7"): "5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803",
    ("libc6-dev", "2.43-7"): "7095b6c9cd209aac9bb54a03edf9f3544589f553f649b71eec29968ca8ea13ce",
}


@dataclass(frozen=True)
class Libc:
    """An unpacked libc. `root` has its lib64, usr/include and so on; `package` is the Debian version of libc6."""

    version: str
    suite: str
    package: str
    root: Path

    @property
    def linker(self) -> Path:
        return self.root / "lib64" / "ld-linux-x86-64.so.2"

    @property
    def library(self) -> Path:
        return (self.root / "lib" / "x86_64-linux-gnu" / "libc.so.6").resolve()

    def compile(self, source: Path, output: Path, flags: Sequence[str] = (), compiler: str = "gcc") -> Path:
        """Link `source` against this libc (dynamically, unless `flags` say -static or -static-pie)."""
        libraries = [self.root / "usr/lib/x86_64-linux-gnu", self.root / "lib/x86_64-linux-gnu"]
        static = any(flag.startswith("-static") for flag in flags)
        command = [compiler, f"--sysroot={self.root}", *flags, "-o", str(output), str(source)]
        command += [f"-B{path}" for path in libraries] + [f"-L{path}" for path in libraries]
        if static:
            command += [f"-L{path}" for path in self.root.glob("usr/lib/gcc/x86_64-linux-gnu/*")]
        else:
            command += [f"-Wl,--dynamic-linker={self.linker}", *(f"-Wl,-rpath,{path}" for path in reversed(libraries))]
        subprocess.run([*command, "-pthread", "-ldl"], check=True)
        return output


@functools.cache
def get(version: str) -> Libc:
    """Return the libc of this version, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    suite = SUITES[version]
    folder = debian.cache() / "libcs" / suite
    package = debian.version_of("libc6", debian.unpack_packages(suite, (*PACKAGES, *OF_THEIR_TIME.get(suite, ())), folder, PINNED))
    if not package.startswith(version):
        warnings.warn(f"Debian {suite} has glibc {package} now, no longer {version}: tested is what it has", stacklevel=2)
    return Libc(version, suite, package, folder / "root")
