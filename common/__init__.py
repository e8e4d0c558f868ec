"""findleaks finds out where the memory of a native process went, and what retains it.

The Python API is `findleaks.api`. Its names are also available here. They are imported at their
first use, because debuggers import this package when they start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ERRORS = ("FindleaksError", "Interrupted", "TargetError", "UsageError")
_NAMES = ("BlockTable", "Blocks", "Process", "Snapshot", "attach", "current", "diff", "load", "open")

__all__ = [
    "BlockTable",
    "Blocks",
    "FindleaksError",
    "Interrupted",
    "Process",
    "Snapshot",
    "TargetError",
    "UsageError",
    "attach",
    "current",
    "diff",
    "load",
    "open",
]

if TYPE_CHECKING:
    from findleaks.api import Blocks, BlockTable, Process, Snapshot, attach, current, diff, load, open  # noqa: A004
    from findleaks.errors import FindleaksError, Interrupted, TargetError, UsageError


def __getattr__(name: str) -> Any:
    if name not in _NAMES and name not in _ERRORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("findleaks.errors" if name in _ERRORS else "findleaks.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
