"""The result of `doctor`: what this machine allows findleaks to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from findleaks.results.record import Record
from findleaks.value_classes import dataclass

CheckState = Literal["ok", "limited", "missing", "failed"]
"""ok: works; limited: works in part; missing: not installed or not set; failed: does not work."""


@dataclass(frozen=True, eq=False, repr=False)
class Check(Record):
    """One thing that findleaks uses."""

    area: str
    """What it belongs to: "findleaks", "debuggers", "live processes", "core dumps" or "network"."""
    name: str
    """What was checked."""
    state: CheckState
    """Whether it works."""
    detail: str
    """What was found, and what it means."""
    remedy: str
    """The command or the action that changes it; "" if nothing needs to change."""


@dataclass(frozen=True, eq=False, repr=False)
class Environment(Record):
    """The result of `doctor`."""

    version: str
    """The version of findleaks."""
    python: str
    """The version of the Python that runs it."""
    folder: str
    """The folder of findleaks."""
    checks: Sequence[Check]
    """All checks, grouped by area."""
