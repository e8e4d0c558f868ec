"""The managed runtimes found in a target."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import Finder, Runtime
from findleaks.target.base import Target

FINDERS: tuple[str, ...] = (
    "findleaks.runtimes.cpython",
    "findleaks.runtimes.ruby",
    "findleaks.runtimes.jvm",
    "findleaks.runtimes.node",
    "findleaks.runtimes.go",
)
"""Modules with a `find(target, engine, directory)`; a new runtime adds itself here."""


def known() -> list[str]:
    """Names of the runtimes that can be read."""
    return [finder.rsplit(".", 1)[-1] for finder in FINDERS]


def find(target: Target, engine: Engine, directory: Directory, names: Sequence[str] = ()) -> list[Runtime]:
    """Every runtime in the process, or those whose module has one of these names."""
    found: list[Runtime] = []
    for module in FINDERS:
        if not names or module.rsplit(".", 1)[-1] in names:
            finder: Finder = importlib.import_module(module).find
            found += finder(target, engine, directory)
    return found
