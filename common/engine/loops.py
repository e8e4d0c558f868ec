"""Import the loops of an allocator or a runtime that are written twice: in C and in Python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from findleaks.engine.contract import Engine


def import_loops(engine: Engine, package: str, name: str = "engine") -> Any:
    """Return the module NAME_native of a package for the C engine, NAME_reference for the Python
    reference engine."""
    return import_module(f"{package}.{name}_{'native' if engine.name == 'native' else 'reference'}")
