"""The program of a process or core: its name and its build id."""

from __future__ import annotations

import os

from findleaks.target.base import Target
from findleaks.target.modules import DELETED, program_module


def program_name(target: Target) -> str:
    """Return the base name of the program's file. If the name by which the program was called is
    not a prefix of it, return that name instead. "" if neither is known."""
    name = os.path.basename(target.exe_path).removesuffix(DELETED)
    return name if name.startswith(target.called) else target.called


def identify_program(target: Target) -> tuple[str, str]:
    """Return the program's name and its build id; each is "" if it is not known."""
    module = program_module(target)
    return program_name(target), module.build_id if module is not None else ""
