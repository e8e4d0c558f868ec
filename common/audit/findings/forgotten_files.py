"""Recognise files that a program maps or loads again and again: many mappings to which no word
refers, and many libraries with similar names."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.bulk import find_pointers_into
from findleaks.audit.findings.figures import LEAKED
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.modules import DELETED
from findleaks.target.ranges import merge_to_most, subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.findings.large_shares import DataFile

_CLUSTERS = 8  # ranges of addresses that are searched for references
_MOST_WORDS = 1 << 17  # examined words; if there are more, all mappings count as referenced
_FORGOTTEN = 0.9  # fraction of the mappings to which no live word refers
_NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{20,}|[0-9]+")
PHASE = "looking for references to mapped files"


class Forgotten(NamedTuple):
    """The number of mappings without a reference in live memory. `unreferenced`: no word refers to
    them. `leaked`: only words in leaked blocks do."""

    unreferenced: int
    leaked: int

    def is_most(self, mappings: int) -> bool:
        """Whether these are nearly all of a number of mappings."""
        return self.unreferenced + self.leaked >= _FORGOTTEN * mappings

    @property
    def facts(self) -> dict[str, object]:
        """The numbers, as facts of a finding."""
        return {"unreferenced": self.unreferenced, "of_leaked_blocks": self.leaked}


def name_pattern(path: str) -> str:
    """Return a path in which the numbers of the file's name are replaced by "#"."""
    folder, name = os.path.split(path.removesuffix(DELETED))
    return os.path.join(folder, _NUMBERS.sub("#", name))


def select_of_folder(files: Sequence[DataFile], least: int) -> list[DataFile]:
    """Return the data files in one folder, if they have at least `least` mappings together; of
    several folders, the one with the most bytes."""
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        groups.setdefault(os.path.dirname(file.name), []).append(file)
    many = [group for group in groups.values() if len(group) > 1 and sum(len(one.regions) for one in group) >= least]
    return max(many, key=lambda group: sum(one.bytes for one in group), default=[])


def count_forgotten(session: Session, regions: Sequence[Region]) -> Optional[Forgotten]:
    """Return the numbers of mappings to which no word of live memory refers, except words in these
    mappings; None if too many words may refer to them."""
    regions = sorted(regions, key=lambda one: one.start)
    starts, own = [one.start for one in regions], [Range(one.start, one.end) for one in regions]
    live: set[int] = set()
    leaked: set[int] = set()
    words = 0
    clusters = merge_to_most(own, _CLUSTERS)
    for piece in session.pieces(subtract([*session.root_memory, *session.heap_ranges()], own), PHASE):
        addresses, values = find_pointers_into(session.engine, piece, clusters)
        words += len(values)
        if words > _MOST_WORDS:
            return None
        for address, value in zip(addresses, values):
            number = bisect_right(starts, value) - 1
            if number >= 0 and value < regions[number].end:
                block = session.directory.blocks.find(address)
                if block < 0 or session.directory.blocks.state(block) == State.IN_USE:
                    (leaked if block >= 0 and session.graph().kind(block) in LEAKED else live).add(number)
    return Forgotten(len(regions) - len(live | leaked), len(leaked - live))
