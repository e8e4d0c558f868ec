"""A program that leaks objects which libraries of two Debian releases allocate: typical leaks of published software."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import NamedTuple

import debian

from cores import Running

SOURCE = Path(__file__).parents[1] / "programs" / "library_leaks.c"

PACKAGES = (
    *("libc6", "libc6-dev", "linux-libc-dev", "libxml2-dev", "libicu-dev", "libssl-dev", "libcurl4-openssl-dev"),
    *("libsqlite3-dev", "zlib1g-dev", "libjson-c-dev", "libexpat1-dev", "libuv1-dev", "libpq-dev"),
)
LIBRARIES = ("xml2", "ssl", "crypto", "curl", "sqlite3", "z", "json-c", "expat", "uv", "pq")


class Build(NamedTuple):
    """A build of the program: its file, and the Debian release of its libraries."""

    suite: str
    program: Path


class Core(NamedTuple):
    """A core, and for each leaked block by address its usable size and the name of the leak that made it."""

    path: Path
    suite: str
    made: dict[int, tuple[str, int]]


@functools.cache
def libraries(suite: str) -> Path:
    """Return the unpacked libraries of a Debian release. Raises debian.PackagesMissing."""
    folder = debian.cache() / "library-leaks" / suite
    debian.unpack_packages(suite, PACKAGES, folder, {}, dependencies=True)
    return folder / "root"


def build(suite: str, folder: Path, compiler: str, *flags: str) -> Build:
    """Build the program, always with the same name, with the libraries of this release. It finds them without options at start."""
    folder.mkdir(parents=True)
    root, program = libraries(suite), folder / "library_leaks"
    where = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    includes = [f"-isystem{root}/usr/include/{name}" for name in ("libxml2", "postgresql", "x86_64-linux-gnu", "json-c")]
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fno-builtin", *flags, f"--sysroot={root}", *includes]
    command += ["-o", str(program), str(SOURCE), *(f"-B{path}" for path in where), *(f"-L{path}" for path in where)]
    command += [f"-Wl,--dynamic-linker={root}/lib64/ld-linux-x86-64.so.2", "-Wl,--disable-new-dtags", "-Wl,--allow-shlib-undefined"]
    command += [*(f"-Wl,-rpath,{path}" for path in where), *(f"-Wl,-rpath-link,{path}" for path in where)]
    if compiler.startswith("clang"):  # which looks for GCC's files below the sysroot
        asked = subprocess.run(["gcc", "-print-libgcc-file-name"], check=True, capture_output=True, text=True)
        command.append(f"--gcc-install-dir={Path(asked.stdout.strip()).parent}")
    subprocess.run([*command, *(f"-l{name}" for name in LIBRARIES)], check=True)
    return Build(suite, program)


def core(built: Build, folder: Path, port: int, seed: int, most: int, *ways: str) -> Core:
    """Return the kernel's core of a run with these leaks, or all, up to `most` times each. `port`: of a PostgreSQL server."""
    server = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    with Running([str(built.program), str(seed), server, str(most), *ways], folder) as process:
        made = {}
        for line in process.output.splitlines()[:-1]:
            way, address, size = line.split()
            made[int(address, 16)] = way, int(size)
        return Core(process.kernel_core(), built.suite, made)
