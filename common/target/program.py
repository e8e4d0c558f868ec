"""The program of a process or core: its name and its build id."""

from __future__ import annotations

import os

from findleaks.target.base import Target
from findleaks.target.modules import DELETED


def program_name(target: Target) -> str:
    """The base name of the program's file; the name by which it was called if that is no beginning
    of it. "" if neither is known."""
    name = os.path.basename(target.exe_path).removesuffix(DELETED)
    return name if name.startswith(target.called) else target.called


def identify_program(target: Target) -> tuple[str, str]:
    """The program's name and its build id; "" for each that is not known."""
    path = target.exe_path.removesuffix(DELETED)
    build_id = next((module.build_id for module in target.modules() if module.path.removesuffix(DELETED) == path), "")
    return program_name(target), build_id
