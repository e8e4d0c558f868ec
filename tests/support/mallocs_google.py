"""Google's tcmalloc with several page sizes, built from the crate libtcmalloc-sys, which contains its C++ sources and Abseil's.

Cargo downloads and builds it, which takes minutes for each build; archives are cached in debian.cache(). Its functions have their own
names: tests/programs/google_malloc.c defines malloc, free and the others with them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
import truth

CRATE = "0.1.14"
DIGEST = "33e204268a3b09862788a2894346c768b95b2cb29cba42c5e2bb9ea7f48fa317"

BUILDS = {
    "8k": ("8k_pages", "extension"),
    "small": ("small_but_slow", "extension"),
    "32k": ("32k_pages", "extension"),
    "256k": ("256k_pages", "extension"),
    "numa": ("8k_pages", "numa_aware", "extension"),
}
"""The crate's features for each build, by the name that the tests use."""

PER_CPU = "glibc.pthread.rseq=0"
"""GLIBC_TUNABLES for per-CPU caches. By default, glibc 2.35 and newer uses the kernel's rseq, and tcmalloc then has caches per thread."""


def _manifest(features: Sequence[str]) -> str:
    names = ", ".join(f'"{feature}"' for feature in features)
    dependency = f'libtcmalloc-sys = {{ version = "={CRATE}", default-features = false, features = [{names}] }}'
    return f'[package]\nname = "nothing"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{dependency}\n[workspace]\n'


def _crossing(compiler: str) -> dict[str, str]:
    """Make the crate cc compile C++ for another machine. The Rust part is still compiled for this machine; nothing of it is used."""
    if not compiler:
        return {}
    tools = {name: compiler.removesuffix("gcc") + tool for name, tool in (("CC", "gcc"), ("CXX", "g++"), ("AR", "ar"))}
    return {**tools, "CRATE_CC_NO_DEFAULTS": "1", "CFLAGS": "-O2 -fPIC", "CXXFLAGS": "-O2 -fPIC"}


def _lock(folder: Path) -> None:
    """Check the lock file's checksum of the crate: cargo rejects a crate that does not match it."""
    text = (folder / "Cargo.lock").read_text()
    if f'name = "libtcmalloc-sys"\nversion = "{CRATE}"' not in text or f'checksum = "{DIGEST}"' not in text:
        raise RuntimeError(f"{folder / 'Cargo.lock'} has another libtcmalloc-sys than {CRATE} of checksum {DIGEST}")


@functools.cache
def archive(build: str, compiler: str = "") -> Path:
    """Return libtcmalloc.a of this build, made at the first use. `compiler`: for another machine, its compiler, whose name ends in -gcc."""
    folder = debian.cache() / "google-tcmalloc" / (f"{build}-{compiler}" if compiler else build)
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "libtcmalloc.a"
    with debian.hold_lock(folder):
        if not output.exists():
            if shutil.which("cargo") is None:
                raise debian.PackagesMissing(
                    "Google's tcmalloc is built by cargo, which is not here (Debian: apt install cargo, Rust 1.87 or newer)"
                )
            home = folder.parent / "home"
            environment = {**os.environ, "CARGO_HOME": str(home), **_crossing(compiler)}
            (folder / "src").mkdir(exist_ok=True)
            (folder / "src/lib.rs").write_text("")
            (folder / "Cargo.toml").write_text(_manifest(BUILDS[build]))
            subprocess.run(["cargo", "fetch", "-q"], cwd=folder, env=environment, check=True)
            _lock(folder)
            (crate,) = home.glob(f"registry/cache/*/libtcmalloc-sys-{CRATE}.crate")
            if hashlib.sha256(crate.read_bytes()).hexdigest() != DIGEST:
                raise RuntimeError(f"{crate} is not the file it should be")
            subprocess.run(["cargo", "build", "-q", "--locked", "--release"], cwd=folder, env=environment, check=True)
            (made,) = folder.glob("target/release/build/libtcmalloc-sys-*/out/libtcmalloc.a")
            shutil.copy(made, output.with_suffix(".part"))
            output.with_suffix(".part").rename(output)
            shutil.rmtree(folder / "target")
    return output


@dataclass(frozen=True)
class Google:
    """A build of Google's tcmalloc, and a folder for its object files."""

    build: str
    folder: Path

    def _objects(self, *more: Path) -> list[str]:
        """Return the objects that give a program or library this malloc."""
        shim = self.folder / "google_malloc.o"
        if not shim.exists():
            source = str(truth.PROGRAMS / "google_malloc.c")
            subprocess.run(
                ["gcc", "-O2", "-fPIC", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-c", source, "-o", str(shim)], check=True
            )
        whole = ["-Wl,--whole-archive", str(archive(self.build)), "-Wl,--no-whole-archive"]
        return [*map(str, more), str(shim), *whole, "-lstdc++", "-lm", "-pthread"]

    def compile(self, source: Path, output: Path, flags: Sequence[str], link: str = "", *more: Path) -> Path:
        """Compile a program. `link`: "preload" (with libc's malloc), "" (with tcmalloc), "stripped" (also without symbols), "static" or
        "static-pie". `more`: further objects."""
        how = [f"-{link}", "-Wl,-z,muldefs"] if link.startswith("static") else []
        objects = [] if link == "preload" else [*how, *self._objects(*more)]
        subprocess.run(["gcc", *flags, str(source), "-o", str(output), *objects, "-pthread"], check=True)
        if link == "stripped":
            subprocess.run(["strip", str(output)], check=True)
        return output

    def library(self) -> Path:
        """Build a shared library to preload."""
        output = self.folder / "libgoogle.so"
        if not output.exists():
            subprocess.run(["g++", "-shared", "-o", str(output), *self._objects()], check=True)
        return output

    def statistics(self, flags: Sequence[str]) -> Path:
        """Build a program that prints the statistics of this tcmalloc."""
        extension, output = self.folder / "google_stats.o", self.folder / "stats"
        subprocess.run(["g++", "-O1", "-Wall", "-Wextra", "-c", str(truth.PROGRAMS / "google_stats.cpp"), "-o", str(extension)], check=True)
        return self.compile(truth.PROGRAMS / "tcmalloc_stats.c", output, flags, "", extension)
