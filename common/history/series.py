"""The snapshots of a process that `watch` keeps: at most MOST, evenly spread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from findleaks.history.snapshot import Snapshot

MOST = 128
"""Most snapshots that are kept."""


def only(one: Snapshot, sections: Collection[str]) -> Snapshot:
    """The snapshot with the figures of these sections only, and without the commands' results."""
    return replace(one, figures=[figure for figure in one.figures if figure.section in sections], answers={})


class Thinned:
    """The first, the last, and evenly spread ones of all added snapshots.

    Every n-th snapshot is kept; n is doubled when there are more than MOST. Example: after n became
    2, the snapshots 0, 2, 4, … and the last one remain."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._added = 0
        self._step = 1

    def add(self, one: Snapshot) -> None:
        """Add the newest snapshot. It replaces the one before it unless that is an n-th."""
        if self._added and (self._added - 1) % self._step:
            self.snapshots.pop()
        self.snapshots.append(one)
        self._added += 1
        if len(self.snapshots) > MOST:
            # Keep the last one, whether or not it is a (2 n)-th.
            last = self.snapshots[-1]
            self._step *= 2
            self.snapshots = self.snapshots[::2]
            if self.snapshots[-1] is not last:
                self.snapshots.append(last)
