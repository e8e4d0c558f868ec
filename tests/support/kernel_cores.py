"""Cores that the kernel writes when programs crash."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import cores


def run_until_crash(command: Sequence[str], folder: Path) -> tuple[Path, str]:
    """Run a program in `folder` until it crashes. Return its core, and its output on stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, preexec_fn=cores._allow_cores, check=False, timeout=cores.PATIENCE
    )
    assert done.returncode < 0, f"{command} ended with status {done.returncode}: {done.stderr}"
    (core,) = folder.glob("core*")
    return core, done.stderr
