"""The result of `doctor`: what this machine allows findleaks to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from findleaks.results.record import Record
from findleaks.value_classes import dataclass

CheckState = Literal["ok", "limited", "missing", "failed"]
"""The result of a check. ok: works. limited: works in part. missing: not installed or not set.
failed: does not work."""


@dataclass(frozen=True, eq=False, repr=False)
class Check(Record):
    """A check of one thing that findleaks needs."""

    area: str
    """The area of the check: "findleaks", "debuggers", "live processes", "core dumps" or
    "network"."""
    name: str
    """What was checked."""
    state: CheckState
    """Whether the checked thing works."""
    detail: str
    """What was found, and what this means for the user."""
    remedy: str
    """The command or action that changes the state; "" if nothing needs to change."""


@dataclass(frozen=True, eq=False, repr=False)
class Environment(Record):
    """The result of `doctor`."""

    version: str
    """The version of findleaks."""
    python: str
    """The version of the Python that runs findleaks."""
    folder: str
    """The directory that contains findleaks."""
    checks: Sequence[Check]
    """All checks, grouped by area."""
