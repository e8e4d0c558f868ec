"""Run Debian's interpreters on other machines, and read their cores with findleaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foreign
from debuggers import run_cli
from foreign import ARM64

PACKAGES = ("python3.11", "ruby3.1", "libstdc++6", "libatomic1")
VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8"}


def run_by(interpreter: str, script: Path, *more: str, files: tuple[Path, ...] = (), options: tuple[str, ...] = ()) -> foreign.Picture:
    tree = foreign.tree(ARM64, "bookworm", PACKAGES, "runtimes", dependencies=True)
    program = foreign.Program(tree, (interpreter, *options, f"./{script.name}", *more), (script, *files), VARIABLES)
    return foreign.picture(ARM64, program)


def runtime(made: foreign.Picture, *more: str) -> dict[str, Any]:
    (found,) = json.loads(run_cli("runtime", "--json", "--sysroot", str(made.root), *more, str(made.core), check=True).stdout)["runtimes"]
    return dict(found)


def functions(stack: dict[str, Any]) -> list[str]:
    """Return the function names of a stack in JSON, innermost first."""
    return [frame["function"] or "" for frame in stack["frames"]]
