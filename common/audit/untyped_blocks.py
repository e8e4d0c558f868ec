"""Find the blocks from which most blocks without a type are reached."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.audit.leak_groups import iterate_leak_heads
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.audit.owners import Owners
from findleaks.audit.references import find_root_references
from findleaks.audit.typed_places import field_at
from findleaks.audit.untyped_reasons import explain_untyped, find_reference
from findleaks.engine.dominators import SHARED, Dominators, node_root
from findleaks.engine.terms import NO_LABEL, State, Totals
from findleaks.errors import TargetError
from findleaks.results.amounts import Amount
from findleaks.results.untyped import Untyped, UntypedSource
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.value_classes import NamedTuple

NAMED = 50
"""Maximum number of groups whose origin is named: each may take a search of root memory."""
CHUNK = 1 << 14
"""Blocks that are visited between two checks for Ctrl-C."""
_MASK = 0xFFFFFF


class _Key(NamedTuple):
    """Blocks of one key have the same origin: a layout, the number of a root below 0, or none."""

    holder: int
    size: int
    is_leaked: bool


class _Group:
    """Blocks of one key. `best` is the block that retains the most. `holder` is the node above this
    block in the dominator tree. `referrer` is the address of a typed word that refers to this
    block."""

    def __init__(self) -> None:
        self.blocks = self.least = self.most = 0
        self.reached = self.best_reached = Totals(0, 0)
        self.best, self.holder = -1, SHARED
        self.referrer: Optional[int] = None

    def add(self, index: int, size: int, reached: Totals, holder: int) -> None:
        self.least = min(self.least, size) if self.blocks else size
        self.most = max(self.most, size)
        self.blocks += 1
        self.reached = Totals(self.reached.blocks + reached.blocks, self.reached.bytes + reached.bytes)
        if reached.bytes > self.best_reached.bytes:
            self.best, self.best_reached, self.holder = index, reached, holder

    def unite(self, other: _Group) -> None:
        if other.best_reached.bytes > self.best_reached.bytes:
            self.best, self.best_reached, self.holder = other.best, other.best_reached, other.holder
            self.referrer = other.referrer
        self.blocks += other.blocks
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self.reached = Totals.sum_of((self.reached, other.reached))


def find_untyped(session: Session, limit: int = 0) -> Untyped:
    """Return where blocks without a type begin. `limit`: the most sources (0: all)."""
    if known_types(session) is None and session.object_types is None:
        raise TargetError("--untyped needs debug information, and none was found: install that of the program, or set DEBUGINFOD_URLS")
    marks = _marks(session)
    groups = _group_reachable(session, marks)
    _add_leaked(session, marks, groups)
    named = _name_groups(session, groups)
    untyped = Totals(0, 0)
    for indices in _find_untyped(session, marks):
        untyped = Totals(untyped.blocks + len(indices), untyped.bytes + sum(session.directory.blocks.columns_of(indices).size))
    found = [_source(session, origin, is_leaked, one) for (origin, is_leaked), one in named]
    in_use = session.directory.blocks.totals(State.IN_USE)
    return Untyped(Amount.of(in_use), Amount.of(untyped), found[: limit or None], len(found))


def _marks(session: Session) -> Sequence[int]:
    """Return a number for each block whose low 24 bits are 0 if its type is not known."""
    known, objects = known_types(session), session.object_types
    claims = known.claims if known is not None else array("I", bytes(4 * len(session.directory.blocks)))
    if objects is None:
        return claims
    return array("I", (1 if label != NO_LABEL else claim for label, claim in zip(objects.types, claims)))


def _find_untyped(session: Session, marks: Sequence[int]) -> Iterator[array[int]]:
    """Yield the indices of the blocks in use without a type, in batches."""
    states = session.directory.blocks.columns().state
    for first in range(0, len(states), CHUNK):
        session.report_progress("finding untyped blocks", first / len(states))
        part = range(first, min(first + CHUNK, len(states)))
        yield array("I", (index for index in part if states[index] == State.IN_USE and not marks[index] & _MASK))


def _group_reachable(session: Session, marks: Sequence[int]) -> dict[_Key, _Group]:
    """Group the reachable blocks without a type that no other block without a type dominates."""
    tree, blocks = build_owner_tree(session).tree, session.directory.blocks
    groups: dict[_Key, _Group] = {}
    for indices in _find_untyped(session, marks):
        for index, size in zip(indices, blocks.columns_of(indices).size):
            holder = tree.idom(index)
            if holder is None or (holder >= 0 and not marks[holder] & _MASK):
                continue
            reached = tree.sum_retained(index)
            if reached.blocks > 1 or _refers(session, index):
                of = marks[holder] & _MASK if holder >= 0 else holder
                groups.setdefault(_Key(of, size, False), _Group()).add(index, size, reached, holder)
    return groups


def _refers(session: Session, index: int) -> bool:
    """Whether a block refers to blocks other than itself."""
    return any(target != index for target, _ in session.graph().references(index))


def _add_leaked(session: Session, marks: Sequence[int], groups: dict[_Key, _Group]) -> None:
    """Add the leak heads without a type that refer to other blocks."""
    graph, blocks = session.graph(), session.directory.blocks
    for count, head in enumerate(iterate_leak_heads(graph)):
        if count % CHUNK == 0:
            session.report_progress("finding untyped blocks", 0.0)
        below = graph.indirect_totals(head)
        if not marks[head] & _MASK and below.blocks:
            size = blocks.size(head)
            groups.setdefault(_Key(0, size, True), _Group()).add(head, size, Totals(below.blocks + 1, below.bytes + size), SHARED)


def _name_groups(session: Session, groups: dict[_Key, _Group]) -> list[tuple[tuple[str, bool], _Group]]:
    """Return the groups by origin, and whether they are leaked; those that reach most bytes
    first. Of the groups that reach least, the origin is not looked for."""
    _, owners, tree = build_owner_tree(session)
    named: dict[tuple[str, bool, int], _Group] = {}
    ordered = sorted(groups.items(), key=lambda item: (-item[1].reached.bytes, item[0]))
    for at, (key, group) in enumerate(ordered):
        origin = _origin(session, owners, tree, group) if at < NAMED and not key.is_leaked else ""
        size = 0 if origin else key.size
        if (origin, key.is_leaked, size) in named:
            named[origin, key.is_leaked, size].unite(group)
        else:
            named[origin, key.is_leaked, size] = group
    found = [((origin, is_leaked), one) for (origin, is_leaked, _), one in named.items()]
    return sorted(found, key=lambda item: (-item[1].reached.bytes, item[1].best))


def _origin(session: Session, owners: Owners, tree: Dominators, group: _Group) -> str:
    """Return the name of the member or the root that refers to `best` of a group. For a member,
    store its address in `group.referrer`."""
    for address in _referrers(session, group):
        name = field_at(session, address)
        if name:
            group.referrer = address
            return name
    root = node_root(group.holder) if group.holder < 0 else -1
    return owners.all[root].label if root >= 0 else ""


def _referrers(session: Session, group: _Group) -> Iterator[int]:
    """Yield the addresses of words that refer to `best` of a group: first words in its holder or in
    other blocks that refer to it, then words in root memory."""
    known, above = known_types(session), []
    if group.holder >= 0:
        above = [group.holder]
    elif node_root(group.holder) < 0 and known is not None:
        above = [one for one in session.graph().referrers(group.best) if known.spec(one) is not None][:4]
    for one in above:
        address = find_reference(session, one, group.best)
        if address is not None:
            yield address
    start = session.directory.blocks.address(group.best)
    if group.holder < 0:
        yield from (one.address for one in find_root_references(session, start, start + 1) if one.address)


def _source(session: Session, origin: Optional[str], is_leaked: bool, one: _Group) -> UntypedSource:
    example = session.directory.blocks.address(one.best)
    sizes = one.least, one.most
    reason = explain_untyped(session, one.best, one.referrer, is_leaked)
    reached, best_reached = Amount.of(one.reached), Amount.of(one.best_reached)
    return UntypedSource(origin or None, is_leaked, reason.text, reason.candidates, one.blocks, sizes, reached, example, best_reached)
