"""Run long work of the engine on a managed heap in slices."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.errors import Interrupted
from findleaks.target.base import Target

SLICE = 1 << 20  # objects that the engine visits between two checks for Ctrl-C


def run_in_slices(step: Callable[[int], bool], target: Target) -> None:
    """Call `step` of the engine with a number of objects until it returns True. Raises Interrupted
    if the user asked to stop."""
    while not step(SLICE):
        if target.interrupted():
            raise Interrupted
