"""A build of APR that Debian does not have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import debian

SOURCE = "75e77cc86776c030c0a5c408dfbd0bf2a0b75eed5351e52d5439fa1e5509a43e"
"""SHA-256 of apr_1.7.2.orig.tar.bz2."""


def without_mmap() -> Path:
    """The folder of libapr 1.7.2 whose nodes are blocks of malloc, which is APR's default. Debian's are mappings. Built once, which takes
    half a minute of CPU time."""
    folder = debian.cache() / "apr-malloc"
    archive = debian.source("bookworm", "apr", folder, SOURCE)
    made, building = folder / "built", folder / "building"
    with debian.locked(folder):
        if not made.is_dir():
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            for command in (["tar", "-xf", str(archive), "--strip-components=1"], ["sh", "configure", "--quiet"], ["make", "--silent"]):
                done = subprocess.run(command, cwd=building, capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(f"{' '.join(command)} failed in {building}: {done.stderr[-2000:]}")
            building.rename(made)
    return made / ".libs"
