"""Mallocs for other machines. Debian does not package them, or they are part of a compiler. They are cross-compiled from the same sources
as in the x86-64 tests (mallocs_musl.py, mallocs_google.py). Each is built at the first use, which takes minutes, and cached in
debian.cache()."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import debian
import mallocs_google
import mallocs_musl
import truth
from accuracy import FLAGS
from foreign import Machine


@functools.cache
def old_musl(machine: Machine, version: str) -> Path:
    """Return the folder with a complete libc that has oldmalloc: headers, archive, startup files, and lib/libc.so, which is also its
    ld.so."""
    source = mallocs_musl.unpacked_source(version)
    prefix = debian.cache() / machine.name / "old-musl" / version
    with debian.hold_lock(prefix.parent):
        if not (prefix / "lib/libc.so").exists():
            shutil.rmtree(prefix, ignore_errors=True)
            made = prefix / "made"
            made.mkdir(parents=True)
            for command in (
                [
                    str(source / "configure"),
                    f"--target={machine.triplet.split('-')[0]}",
                    f"--prefix={prefix}",
                    f"--syslibdir={prefix}/lib",
                    "--with-malloc=oldmalloc",
                    f"CROSS_COMPILE={machine.compiler.removesuffix('gcc')}",
                ],
                ["make", "-j2", "install-headers", "install-libs"],
            ):
                subprocess.run(command, cwd=made, check=True, stdout=subprocess.DEVNULL)
            shutil.rmtree(made)
    return prefix


def compiled_for_old_musl(machine: Machine, version: str, source: Path, output: Path, static: bool) -> Path:
    """Compile a program for it. The working folder of a dynamic one contains libc.so."""
    prefix = old_musl(machine, version)
    libraries = prefix / "lib"
    command = [machine.compiler, *FLAGS, "-nostdinc", "-nostdlib", "-isystem", str(prefix / "include"), "-isystem", _headers(machine)]
    command += ["-O2", "-static", "-no-pie", "-fno-pie"] if static else ["-O1", "-fPIE", "-pie", "-Wl,--dynamic-linker=./libc.so"]
    command += ["-mno-outline-atomics", "-o", str(output)]  # libgcc's functions ask glibc for the processor's features
    command += [str(libraries / ("crt1.o" if static else "Scrt1.o")), str(libraries / "crti.o"), str(source)]
    command += ["-Wl,--start-group", "-lc", "-lgcc", "-lgcc_eh", "-Wl,--end-group"] if static else ["-l:libc.so", "-lgcc"]
    subprocess.run([*command, f"-L{libraries}", str(libraries / "crtn.o")], check=True)
    return output


def google_library(machine: Machine, build: str, folder: Path) -> Path:
    """Build Google's tcmalloc as a library to preload. It contains libstdc++."""
    shim, output = folder / f"google_malloc-{machine.name}.o", folder / "libgoogle.so"
    source = str(truth.PROGRAMS / "google_malloc.c")
    subprocess.run([machine.compiler, "-O2", "-fPIC", "-fno-builtin", *FLAGS[1:], "-c", source, "-o", str(shim)], check=True)
    whole = ["-Wl,--whole-archive", str(mallocs_google.archive(build, machine.compiler)), "-Wl,--no-whole-archive"]
    linker = machine.compiler.removesuffix("gcc") + "g++"
    subprocess.run([linker, "-shared", "-static-libstdc++", "-o", str(output), str(shim), *whole, "-lm", "-pthread"], check=True)
    return output


def _headers(machine: Machine) -> str:
    """Return the folder of the compiler's own headers."""
    asked = [machine.compiler, "-print-file-name=include"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
