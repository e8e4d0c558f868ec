"""Group leaked blocks by allocation site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Optional

from findleaks.allocators.sites import STEP
from findleaks.audit.block_contents import find_hint
from findleaks.audit.block_type import find_block_type
from findleaks.audit.leak_groups import EXAMPLES, Leak, iterate_leak_heads
from findleaks.audit.site_stacks import SiteNames
from findleaks.audit.suppressions import Suppressions
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, Totals
from findleaks.runtimes.base import NO_OBJECT
from findleaks.session import Session
from findleaks.value_classes import dataclass, field

_LEADS = (Kind.POSSIBLE, Kind.DEFINITE)
_LED = re.compile(b"[" + bytes(_LEADS) + b"]")


@dataclass
class _Group:
    """The leaked blocks of one kind and site, collected block by block."""

    examples: list[int] = field(default_factory=list)
    blocks: int = 0
    bytes: int = 0
    smallest: int = 1 << 64
    largest: int = 0
    cycles: set[int] = field(default_factory=set)
    indirect_blocks: int = 0
    indirect_bytes: int = 0
    least_indirect: int = 1 << 64
    most_indirect: int = 0
    estimated_blocks: float = 0.0
    estimated_bytes: float = 0.0

    def add(self, start: int, size: int, cycle: int, hanging: Totals, weight: float) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(start)
        self.blocks += 1
        self.bytes += size
        if size < self.smallest:
            self.smallest = size
        if size > self.largest:
            self.largest = size
        self.cycles.add(cycle)
        blocks = hanging.blocks
        if blocks:
            self.indirect_blocks += blocks
            self.indirect_bytes += hanging.bytes
        if blocks < self.least_indirect:
            self.least_indirect = blocks
        if blocks > self.most_indirect:
            self.most_indirect = blocks
        self.estimated_blocks += weight
        self.estimated_bytes += weight * size


def group_leaks_by_site(session: Session, graph: Graph, suppressions: Optional[Suppressions] = None) -> list[Leak]:
    """Return groups of DEFINITE and POSSIBLE blocks by kind and site, the largest first.

    Blocks without a site form one group for each kind. These groups are last if sites are sampled.
    Blocks that `suppressions` covers are left out, and `suppressions` counts them."""
    kinds, names = graph.kinds(), SiteNames(session)
    rest = bytearray(len(kinds))  # the kinds of the leak heads that have no group yet
    for index in iterate_leak_heads(graph):
        rest[index] = kinds[index]
    groups: dict[tuple[int, int], _Group] = {}
    known = session.object_types
    trees = known.types if known is not None and known.are_trees else None
    nothing, hangs = Totals(0, 0), graph.totals(Kind.INDIRECT).blocks > 0 or graph.heads() is not None
    for index, start, size, number, weight in chain(_iterate_sited(session, kinds, rest), _iterate_unsited(session, rest)):
        kind = kinds[index]
        hanging = graph.indirect_totals(index) if hangs else nothing
        if suppressions is not None and _is_suppressed(session, suppressions, names, start, size, number, hanging):
            continue
        is_in_tree = trees is not None and trees[index] != NO_OBJECT
        cycle = graph.cycle(index) if hanging.blocks and not is_in_tree else 1
        groups.setdefault((kind, number), _Group()).add(start, size, cycle, hanging, weight)
    found = [_leak(session, Kind(kind), number, group) for (kind, number), group in groups.items()]
    sampled = any(one.sampled for one in session.sites.recordings)
    return sorted(found, key=lambda leak: (sampled and not leak.site, leak.weight))


_Lost = tuple[int, int, int, int, float]
"""Index, address and size of a leak head, its site (0: unknown), and its weight."""


def _iterate_sited(session: Session, kinds: memoryview, rest: bytearray) -> Iterator[_Lost]:
    """Yield the leak heads whose sites are known, and set their kinds in `rest` to UNKNOWN."""
    for part, number_of, first, recording in session.sites.batches():
        session.report_progress("looking up allocation sites", part)
        addresses = recording.addresses[first : first + STEP]
        for i, (start, index, size) in enumerate(zip(addresses, *session.directory.blocks.find_all(addresses)), first):
            if size and rest[index] in _LEADS:
                rest[index] = Kind.UNKNOWN
                yield index, start, size, number_of[recording.site_of[i]], recording.weights[i] if recording.weights else 1.0


def _iterate_unsited(session: Session, rest: bytearray) -> Iterator[_Lost]:
    """Yield the leak heads whose kinds are left in `rest`."""
    blocks = session.directory.blocks
    for count, match in enumerate(_LED.finditer(rest)):
        if count % 1024 == 0:
            session.report_progress("looking up allocation sites", match.start() / len(rest))
        index = match.start()
        yield index, blocks.address(index), blocks.size(index), 0, 0.0


def _is_suppressed(
    session: Session, suppressions: Suppressions, names: SiteNames, start: int, size: int, number: int, hanging: Totals
) -> bool:
    name = find_block_type(session, session.directory.blocks.find(start))
    hint = "" if name else find_hint(session, start, size)
    rule = suppressions.match(name, size, hint, "", names.search_text(number) if number else "")
    if rule is not None:
        suppressions.add(rule, 1 + hanging.blocks, size + hanging.bytes)
    return rule is not None


def _leak(session: Session, kind: Kind, number: int, group: _Group) -> Leak:
    """Return the group as a leak. It has a type if all examples have this type. Its hint is that of
    the first example."""
    blocks = session.directory.blocks
    sizes = [blocks.size(blocks.find(start)) for start in group.examples]
    types = {find_block_type(session, blocks.find(start)) for start in group.examples}
    type_name = types.pop() if len(types) == 1 else ""
    return Leak(
        kind=kind,
        type=type_name,
        hint="" if type_name else find_hint(session, group.examples[0], sizes[0]),
        smallest=group.smallest,
        largest=group.largest,
        cycle=group.cycles.pop() if len(group.cycles) == 1 else 0,
        blocks=group.blocks,
        bytes=group.bytes,
        indirect_blocks=group.indirect_blocks,
        indirect_bytes=group.indirect_bytes,
        least_indirect=group.least_indirect,
        most_indirect=group.most_indirect,
        examples=tuple(group.examples),
        site=number,
        estimated=_estimate(session, number, group),
    )


def _estimate(session: Session, number: int, group: _Group) -> Optional[Totals]:
    if not number or not session.sites[number].recording.sampled:
        return None
    return Totals(round(group.estimated_blocks), round(group.estimated_bytes))
