"""The program of a process or core: its name and its build id."""

from __future__ import annotations

import os

from findleaks.target.base import Target
from findleaks.target.modules import DELETED


def program_name(target: Target) -> str:
    """Return the base name of the program's file. If the name by which the program was called is
    not a prefix of it, return that name instead. "" if neither is known."""
    name = os.path.basename(target.exe_path).removesuffix(DELETED)
    return name if name.startswith(target.called) else target.called


def identify_program(target: Target) -> tuple[str, str]:
    """Return the program's name and its build id; each is "" if it is not known."""
    path = target.exe_path.removesuffix(DELETED)
    build_id = next((module.build_id for module in target.modules() if module.path.removesuffix(DELETED) == path), "")
    return program_name(target), build_id
