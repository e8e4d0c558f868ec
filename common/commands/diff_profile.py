"""Build the differential profile that `diff -o` writes. It has values for the first and the last
sample: leaked groups, what roots retain by field, and memory of allocators and others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.commands.profiles import blocks_measures
from findleaks.formatting import printable
from findleaks.history.figure_series import Series
from findleaks.history.figures import ARROW
from findleaks.history.growth import Growth
from findleaks.history.snapshot import differences
from findleaks.report.profile import Frame, Profile, Sample, frame_name

Path = tuple[str, ...]
BLOCKS = ("lost", "garbage", "root", "field")
"""Sections in which a count is a number of blocks."""


class Amounts(NamedTuple):
    """Two pairs of blocks and bytes: in the first and in the last sample."""

    before: tuple[int, int]
    after: tuple[int, int]


def of_growth(growth: Growth) -> Profile:
    """Return the growth as a profile. The value of a step does not include the steps below it, so
    steps do not overlap. Their sum is the resident memory if all blocks are resident."""
    found = {path: _amounts(one) for one in growth.series.values() for path in _path(one) if one.known}
    whole: dict[Path, list[Amounts]] = {}  # The values of the steps directly below each step.
    for path, amounts in found.items():
        whole.setdefault(_above(path, found), []).append(amounts)
    samples = [_sample(path, amounts, whole.get(path, ())) for path, amounts in found.items()]
    first, last = growth.snapshots[0], growth.snapshots[-1]
    title = f"What grew: {last.identity.program or 'the program'}, from {printable(first.name)} to {printable(last.name)}"
    notes = list(differences(growth.snapshots))
    return Profile(title, blocks_measures(), [one for one in samples if any(one.values) or any(one.before)], True, notes=notes)


def _path(one: Series) -> Iterator[Path]:
    section, within, name = one.key
    if section == "lost" and within == "definite":
        yield "lost", name
    elif section == "garbage":
        yield "garbage", name
    elif section == "root":
        yield "held", name
    elif section == "field":
        yield ("held", within, *name.split(ARROW))
    elif section == "share" and not name.endswith(": in-use"):
        yield "kept", name


def _above(path: Path, found: dict[Path, Amounts]) -> Path:
    """Return the nearest step above `path` that has figures; () if there is none."""
    for length in range(len(path) - 1, 0, -1):
        if path[:length] in found:
            return path[:length]
    return ()


def _amounts(one: Series) -> Amounts:
    blocks: Sequence[Optional[int]] = one.counts if one.key[0] in BLOCKS else [0]
    return Amounts((blocks[0] or 0, one.values[0]), (blocks[-1] or 0, one.values[-1]))


def _sample(path: Path, whole: Amounts, parts: Sequence[Amounts]) -> Sample:
    before, after = (tuple(max(value - sum(part[end][at] for part in parts), 0) for at, value in enumerate(whole[end])) for end in (0, 1))
    return Sample(tuple(Frame(frame_name(step)) for step in path), after, before)
