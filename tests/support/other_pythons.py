"""CPythons that no Debian release has: 3.10, 3.12, 3.14.3 (which has the incremental garbage collector that 3.14.5 removed), and
free-threaded builds."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
import mallocs_python
import maven

INCREMENTAL = "org.bytedeco:cpython:3.14.3-1.5.13:jar:linux-x86_64"
"""The last packaged release with the incremental garbage collector. Its interpreter is a library."""

INCREMENTAL_HASH = "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f"

PACKED = {
    "3.10": ("org.bytedeco:cpython:3.10.8-1.5.8:jar:linux-x86_64", "2f101b1aa06effdbda3c318c1728b13f22b571707c7b7704abaf5d19a33aa981"),
    "3.12": ("org.bytedeco:cpython:3.12.1-1.5.10:jar:linux-x86_64", "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
    "3.14": (INCREMENTAL, INCREMENTAL_HASH),
}
"""Releases that are packaged in this way, by version: artifact and its SHA-256."""

FREE_THREADED_SUITE = "trixie"
FREE_THREADED = "3.13.5"
FREE_THREADED_HASH = "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"


@dataclass(frozen=True)
class Installed(mallocs_python.Python):
    """An interpreter that runs with the machine's libc. `root` is its prefix."""

    def command(self, *arguments: str) -> list[str]:
        return [str(self.root / "bin" / f"python{self.version}"), *arguments]

    def environment(self, *modules: Path, **more: str) -> dict[str, str]:
        return {**super().environment(*modules, **more), "PYTHONHOME": str(self.root), "LD_LIBRARY_PATH": str(self.root)}


def incremental() -> mallocs_python.Python:
    """Return CPython 3.14.3, unpacked at the first use."""
    return get_packed("3.14")


@functools.cache
def get_packed(version: str) -> mallocs_python.Python:
    """Return the interpreter of a version in PACKED, unpacked at the first use."""
    artifact, digest = PACKED[version]
    release = artifact.split(":")[2].split("-")[0]
    root = maven.unpack_artifact(artifact, digest, debian.cache() / "pythons" / release) / "org/bytedeco/cpython/linux-x86_64"
    (root / "bin" / f"python{version}").chmod(0o755)
    return Installed(version, release, root)


@functools.cache
def free_threaded() -> mallocs_python.Python:
    """Return CPython 3.13t, built from Debian's source at the first use, which takes minutes. It runs in the folder in which it was
    built."""
    folder = debian.cache() / "pythons" / f"{FREE_THREADED}t"
    archive = debian.source(FREE_THREADED_SUITE, "python3.13", folder, FREE_THREADED_HASH)
    build = folder / "build"
    with debian.hold_lock(folder):
        if not (folder / "built").exists():
            shutil.rmtree(build, ignore_errors=True)
            build.mkdir()
            for command in (
                ["tar", "-x", "-f", str(archive), "--strip-components=1"],
                ["./configure", "--disable-gil", "--without-ensurepip", "--disable-test-modules", "CFLAGS=-O1 -g0 -w"],
                ["nice", "make", "-j2", "python"],
            ):
                done = subprocess.run(command, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if done.returncode:
                    raise debian.PackagesMissing(f"building CPython {FREE_THREADED}: {' '.join(command)} failed:\n{done.stdout[-4000:]}")
            (folder / "built").touch()
    return Built("3.13", FREE_THREADED, build)


@dataclass(frozen=True)
class Built(mallocs_python.Python):
    """An interpreter in the folder in which it was built. Modules that are separate files are missing."""

    def command(self, *arguments: str) -> list[str]:
        return [str(self.root / "python"), *arguments]

    def environment(self, *modules: Path, **more: str) -> dict[str, str]:
        made = super().environment(*modules, **more)
        del made["PYTHONHOME"]
        return made

    def extension(self, source: Path, folder: Path) -> Path:
        """Build a module for the interpreter into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{source.stem}.so"
        headers: Sequence[str] = (f"-I{self.root / 'Include'}", f"-I{self.root}")
        subprocess.run(["gcc", *mallocs_python.FLAGS, *headers, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
        return made


PYTHONS = {
    "3.9": lambda: mallocs_python.get("3.9"),
    "3.10": lambda: get_packed("3.10"),
    "3.11": lambda: mallocs_python.get("3.11"),
    "3.12": lambda: get_packed("3.12"),
    "3.13": lambda: mallocs_python.get("3.13"),
    "3.13t": free_threaded,
    "3.14": lambda: mallocs_python.get("3.14"),
    "3.14.3": incremental,
}
"""All interpreters, by version."""
