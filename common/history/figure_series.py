"""Figures as series: the counts and bytes of each figure in every snapshot.

A figure that is missing from a snapshot counts as 0 there. Fields of a root are an exception,
because only the largest are listed: the figure of a missing field is unknown if the root exists.
Descriptors are counted only in some snapshots; in others, their numbers are unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.formatting import replace_numbers
from findleaks.history.figures import DESCRIPTORS, MAPPINGS
from findleaks.history.snapshot import Snapshot
from findleaks.target.kernel_references import NUMBERED_FILES, OTHERS, SOCKET, is_socket

REST = "rest"
"""The note of the series of a root without its largest parts, which have their own rows."""

_MERGED = {MAPPINGS: "", DESCRIPTORS: NUMBERED_FILES}
"""Sections in which files whose names differ only in numbers are merged if they are many, with the
prefix of the merged name."""

LISTED_IN_PART = frozenset({"field", "container"})
"""Sections for which `roots` lists only the largest rows."""

Key = tuple[str, str, str]
"""Section, containing figure, name."""


class Series(NamedTuple):
    """One figure in every snapshot: its counts and its bytes. A value is None if it is unknown or
    missing. `note` is that of the last snapshot that has the figure."""

    key: Key
    counts: Sequence[Optional[int]]
    bytes: Sequence[Optional[int]]
    note: str

    @property
    def in_bytes(self) -> bool:
        """Whether bytes are compared. If a figure has no bytes, its counts are compared."""
        return any(value is not None for value in self.bytes)

    @property
    def compared(self) -> Sequence[Optional[int]]:
        return self.bytes if self.in_bytes else self.counts

    @property
    def known(self) -> bool:
        """Whether the figure is known in every snapshot."""
        return None not in self.compared

    @property
    def values(self) -> list[int]:
        """The compared values; 0 if unknown."""
        return [value or 0 for value in self.compared]

    @property
    def delta(self) -> int:
        """The growth; 0 if it is unknown."""
        first, last = self.compared[0], self.compared[-1]
        return 0 if first is None or last is None else last - first


def all_series(snapshots: Sequence[Snapshot], sections: Optional[frozenset[str]] = None) -> dict[Key, Series]:
    """Return the figures of all snapshots by key. `sections`: only figures of these sections."""
    unknown: tuple[Optional[int], ...] = (None,) * len(snapshots)
    zero: tuple[Optional[int], ...] = (0,) * len(snapshots)
    counts: dict[Key, list[Optional[int]]] = {}
    sizes: dict[Key, list[Optional[int]]] = {}
    notes: dict[Key, str] = {}
    figures = [one for sample in snapshots for one in sample.figures if one.section in _MERGED]
    merged = {(one.section, one.within, one.name) for one in figures if "#" in one.name}
    has_protocols = not any((one.section, one.name) == (DESCRIPTORS, SOCKET) for one in figures)
    for at, one in enumerate(snapshots):
        for section, name, count, size, within, note in one.figures:
            if sections is not None and section not in sections:
                continue
            if merged and section in _MERGED and (section, within, pattern := _MERGED[section] + replace_numbers(name)) in merged:
                name = pattern  # the other snapshots have enough of these files to merge them
            if section == DESCRIPTORS and not has_protocols and is_socket(name):
                name = SOCKET  # another snapshot has too many sockets to read their protocols
            key = section, within, name
            if count is not None:
                row = counts.get(key)
                if row is None:
                    row = counts[key] = list(unknown if section in LISTED_IN_PART else zero)
                row[at] = (row[at] or 0) + count
            if size is not None:
                row = sizes.get(key)
                if row is None:
                    row = sizes[key] = list(unknown if section in LISTED_IN_PART else zero)
                row[at] = (row[at] or 0) + size
            notes[key] = note
    _without_their_roots(snapshots, counts, sizes)
    _without_uncounted_descriptors(snapshots, counts)
    return {key: Series(key, counts.get(key, unknown), sizes.get(key, unknown), note) for key, note in notes.items()}


def _without_their_roots(snapshots: Sequence[Snapshot], *columns: dict[Key, list[Optional[int]]]) -> None:
    """Set fields to 0 in each snapshot that lacks the root of the field."""
    roots = [{figure.name for figure in one.figures if figure.section == "root"} for one in snapshots]
    for rows in columns:
        for (section, within, _), row in rows.items():
            if section in LISTED_IN_PART:
                for at, value in enumerate(row):
                    if value is None and roots[at] and within not in roots[at]:
                        row[at] = 0


def _without_uncounted_descriptors(snapshots: Sequence[Snapshot], counts: dict[Key, list[Optional[int]]]) -> None:
    """Set the numbers of descriptors to None where they are unknown: all in a snapshot without data
    about descriptors, and those of names that a snapshot does not have, if it counts some names as
    OTHERS."""
    for at, one in enumerate(snapshots):
        names = {figure.name for figure in one.figures if figure.section == DESCRIPTORS}
        if names and OTHERS not in names:
            continue
        for key, row in counts.items():
            if key[0] == DESCRIPTORS and (not names or not row[at]):
                row[at] = None


def subtract_parts(whole: Series, parts: Sequence[Series]) -> Series:
    """Return the series minus these parts. The number of blocks is unknown if a part counts
    handles."""
    sizes = [_difference(column) for column in zip(whole.bytes, *(one.bytes for one in parts))]
    alike = all(one.key[0] != "handles" for one in parts)
    counts = [_difference(column) if alike else None for column in zip(whole.counts, *(one.counts for one in parts))]
    return Series(whole.key, counts, sizes, REST)


def add_objects(one: Series, objects: Series) -> Series:
    """Return the native memory of a variable or its container, plus the bytes of its objects in the
    managed heap."""
    sizes = [None if size is None else size + (more or 0) for size, more in zip(one.bytes, objects.bytes)]
    return one._replace(bytes=sizes)


def _difference(column: Sequence[Optional[int]]) -> int:
    first, *others = (value or 0 for value in column)
    return first - sum(others)


def sum_series(key: Key, parts: Sequence[Series]) -> Series:
    """Return a series with the sums of the counts and bytes of several series."""
    counts = [sum(value or 0 for value in column) for column in zip(*(one.counts for one in parts))]
    return Series(key, counts, [sum(value or 0 for value in column) for column in zip(*(one.bytes for one in parts))], "")
