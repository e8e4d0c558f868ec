"""Moments of a process that is watched: as many as memory and the eye can take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from findleaks.history.snapshot import Snapshot

MOST = 128
"""Snapshots that are kept."""


def only(one: Snapshot, sections: Collection[str]) -> Snapshot:
    """A snapshot with the figures of these sections, and without the commands' answers."""
    return replace(one, figures=[figure for figure in one.figures if figure.section in sections], answers={})


class Thinned:
    """The first, the last, and evenly spread ones of all snapshots that were added: every n-th,
    with n doubled when there are more than MOST."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._added = 0
        self._step = 1

    def add(self, one: Snapshot) -> None:
        """The newest snapshot. It replaces the one before it unless that is an n-th."""
        if self._added and (self._added - 1) % self._step:
            self.snapshots.pop()
        self.snapshots.append(one)
        self._added += 1
        if len(self.snapshots) > MOST:
            # The last one is kept, whether it is a (2 n)-th or not.
            last = self.snapshots[-1]
            self._step *= 2
            self.snapshots = self.snapshots[::2]
            if self.snapshots[-1] is not last:
                self.snapshots.append(last)
