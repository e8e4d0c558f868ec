"""Builds of Perl that Debian does not have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import debian

SOURCE = "0f386dccbee8e26286404b2cca144e1005be65477979beb9b1ba272d4819bcf0"
"""SHA-256 of perl_5.36.0.orig.tar.xz."""


def without_threads() -> Path:
    """The folder of Perl 5.36 without threads: the program `perl`, stripped, and its modules in `lib`. Built once, which takes minutes."""
    folder = debian.cache() / "perl-unthreaded"
    archive = debian.source("bookworm", "perl", folder, SOURCE)
    made, building = folder / "built", folder / "building"
    with debian.locked(folder):
        if not made.is_dir():
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            _run(building, "tar", "-xf", str(archive), "--strip-components=1")
            _run(building, "sh", "Configure", "-des", "-Uusethreads", "-Doptimize=-O1", "-Dman1dir=none", "-Dman3dir=none")
            _run(building, "make", "perl")
            _run(building, "make", "lib/auto/List/Util/Util.so")
            _run(building, "strip", "perl")
            building.rename(made)
    return made


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {folder}: {done.stderr[-2000:]}")
