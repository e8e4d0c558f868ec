"""scudo of several versions: clang's standalone runtimes, preloaded or linked into a program.

The runtime of LLVM 19 is installed. Other runtimes come from packages of Debian's suites. Runtimes of newer suites need the glibc of their
suite.
"""

from __future__ import annotations

import functools
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

import debian
import libcs

CLANG = "clang-19"
QUARANTINE = {"SCUDO_OPTIONS": "quarantine_size_kb=256:thread_local_quarantine_size_kb=64:quarantine_max_chunk_size=4096"}
"""Options that enable the quarantine. By default, scudo has none."""

INSTALLED = "19"
SUITES = {"14": "bookworm", "16": "bookworm", "17": "trixie", "18": "trixie", "21": "sid", "22": "sid", "23": "sid"}
"""The Debian suite of each LLVM release. sid changes: `library` then warns, and tests run with sid's current version."""

LIBCS = {"trixie": "2.41", "sid": "2.43"}
"""The glibc that a suite's runtimes need."""

PINNED: debian.Pins = {
    ("libclang-rt-14-dev", "1:14.0.6-12"): "180c4d27fdc912e2e5de21f383aff07d27e1745c34591a41e4d12ff70be54764",
    ("libclang-rt-16-dev", "1:16.0.6-15~deb12u1"): "c9fb412604acae2efbe95dc0e161c7cf5ac06d952d03416bc781a07cfbc8467d",
    ("libclang-rt-17-dev", "1:17.0.6-22+b2"): "2137ab76dbb2292464272eb2a9f7f7057e96b586009adb631cf96977f41163a8",
    ("libclang-rt-18-dev", "1:18.1.8-18+b1"): "5957b0da4b443d9c266f8cb7ab5c2502942eea1acfb1bf71b6348bc0eacdecf2",
    ("libclang-rt-21-dev", "1:21.1.8-14"): "865b7836765f7684abd71bd3a7ad465fa313ec3d83b2f3971797c36b09cb4f47",
    ("libclang-rt-22-dev", "1:22.1.8-3"): "f931e924f6d9f71a0a51263d63016c8859867ef07f6b6f70df1dd9b0fd125583",
    ("libclang-rt-23-dev", "1:23.1.4-2"): "f71bc8875b7b487786d66cd6f0f9480d2b442cbd176a76b2fe0f9255a2586ef0",
}

RUNTIME = "libclang_rt.scudo_standalone-x86_64.so"


@functools.cache
def library(version: str) -> Path:
    """Return a runtime to preload. Raises debian.PackagesMissing."""
    if version == INSTALLED:
        asked = subprocess.run([CLANG, f"-print-file-name={RUNTIME}"], check=True, capture_output=True, text=True)
        return Path(asked.stdout.strip()).resolve()
    folder, package = debian.cache() / "scudo" / version, f"libclang-rt-{version}-dev"
    found = debian.version_of(package, debian.unpack_packages(SUITES[version], (package,), folder, PINNED))
    if (package, found) not in PINNED:
        warnings.warn(f"Debian {SUITES[version]} has {package} {found} now: tested is what it has", stacklevel=2)
    return next(path for path in (folder / "root").rglob(RUNTIME) if not path.is_symlink()).resolve()


def preload_environment(version: str) -> dict[str, str]:
    """Return the environment that preloads this runtime."""
    return {"LD_PRELOAD": str(library(version))}


def compile_for(version: str, source: Path, output: Path, flags: Sequence[str]) -> Path:
    """Compile a program that this runtime can be preloaded into."""
    libc = LIBCS.get(SUITES.get(version, ""), "")
    if libc:
        return libcs.get(libc).compile(source, output, flags)
    subprocess.run(["gcc", *flags, "-o", str(output), str(source), "-pthread", "-ldl"], check=True)
    return output


def compile_linked(source: Path, output: Path, flags: Sequence[str]) -> Path:
    """Compile a program with LLVM 19's runtime linked in."""
    subprocess.run([CLANG, *flags, "-fsanitize=scudo", "-o", str(output), str(source), "-pthread"], check=True)
    return output
