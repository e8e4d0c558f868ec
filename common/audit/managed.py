"""Native memory held by managed objects: the blocks that would be freed if all objects of one type
were."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.session import SLICE, Session

STEP = 1 << 19
"""Objects handled between two checks for Ctrl-C."""


class Held(NamedTuple):
    """A type, with the blocks in use that only its objects hold."""

    type: Type
    native: Optional[Totals]  # None: not known
    reported: Optional[int]  # see Runtime.reported_bytes


class Managed(NamedTuple):
    """A runtime with its types, largest first by the bytes of the objects and of what they hold.
    `native`: the sum of what the types hold. Blocks that objects of several types hold together, or
    objects and something else, are not in it."""

    runtime: Runtime
    types: list[Held]
    native: Optional[Totals]


def managed(session: Session, runtimes: Sequence[Runtime], native: bool = True, group: Callable[[str], str] = str) -> list[Managed]:
    """Each runtime's objects by type. Without `native`, the graph of blocks is not made, and what
    objects hold is not known. Types to which `group` gives one name count as one type, also for
    what only they hold together."""
    holders = [_grouped(runtime.holders(), group) for runtime in runtimes] if native else [None for _ in runtimes]
    totals = held(session, [one for one in holders if one is not None]) if any(holders) else []
    found, which = [], iter(totals)
    for runtime, one in zip(runtimes, holders):
        session.report_progress(f"counting the objects of {runtime.name}", 0.0)
        mine: dict[str, Totals] = {}
        for name, total in zip(one.names, next(which)) if one is not None else ():
            before = mine.get(name, Totals(0, 0))
            mine[name] = Totals(before.blocks + total.blocks, before.bytes + total.bytes)
        rows = [Held(kind, mine.get(kind.name, Totals(0, 0)) if one else None, reported) for kind, reported in _types(runtime, group)]
        rows.sort(key=lambda row: (-row.type.bytes - (row.native.bytes if row.native else 0), -row.type.objects, row.type.name))
        summed = Totals(sum(total.blocks for total in mine.values()), sum(total.bytes for total in mine.values())) if one else None
        found.append(Managed(runtime, rows, summed))
    return found


def package(name: str) -> str:
    """The package, module or outermost class of a type: "sqlite3" of sqlite3.Connection, "PG" of
    PG::Result; the type itself where it has none."""
    return name.partition("::")[0] if "::" in name else name.partition(".")[0]


def _types(runtime: Runtime, group: Callable[[str], str]) -> list[tuple[Type, Optional[int]]]:
    """The runtime's types, or groups of them, each with the bytes reported to the runtime; None
    where no type of the group reports."""
    made: dict[str, Type] = {}
    names: dict[str, set[str]] = {}
    for kind in runtime.types():
        name = group(kind.name)
        names.setdefault(name, set()).add(kind.name)
        before = made.get(name, Type(name, 0, 0))
        own = {word: before.own.get(word, 0) + kind.own.get(word, 0) for word in [*before.own, *kind.own]}
        made[name] = Type(name, before.objects + kind.objects, before.bytes + kind.bytes, own)
    reported = {name: [it for it in map(runtime.reported_bytes, its) if it is not None] for name, its in names.items()}
    return [(kind, sum(reported[name]) if reported[name] else None) for name, kind in made.items()]


def _grouped(one: Optional[Holders], group: Callable[[str], str]) -> Optional[Holders]:
    """The same objects, with types merged into groups. Where types of a group own only in part what
    they hold, the two parts stay apart."""
    if one is None or group is str:
        return one
    numbers: dict[tuple[bool, str], int] = {}
    places = [numbers.setdefault((at >= one.owning, group(name)), len(numbers)) for at, name in enumerate(one.names)]
    number = {**dict(enumerate(places)), NO_ROOT: NO_ROOT, IGNORED: IGNORED}.__getitem__
    return one._replace(
        types=array("I", map(number, one.types)),
        names=[name for _, name in numbers],
        blocks=array("I", map(number, one.blocks)),
        owning=sum(not rest for rest, _ in numbers),
        owned=[(places[kind], owned) for kind, owned in one.owned],
    )


def held(session: Session, holders: Sequence[Holders]) -> list[list[Totals]]:
    """For each runtime and type number, the blocks and bytes that only objects of this type hold.
    Blocks that contain the objects themselves (CPython's) are left out."""
    first = [0]
    for one in holders:
        first.append(first[-1] + len(one.names))
    rest = first[-1]  # the root of all root memory outside managed objects
    graph = session.graph()
    bounds, owners = _all_bounds(session, holders, first, rest)
    # The roots of one priority must have consecutive numbers; two runtimes in a process are rare.
    owning = holders[0].owning if len(holders) == 1 else 0
    pages = [part for one in holders for part in one.pages]
    tree = graph.dominators(rest + 1, bounds, owners, priorities=[owning] if owning else ())
    roots_of_blocks = _roots_of_blocks(holders, first)
    if pages:
        roots_of_blocks = roots_of_blocks if roots_of_blocks is not None else array("I", [NO_ROOT]) * len(session.directory.blocks)
        for part in pages:
            index = session.directory.blocks.find(part.start)
            if index >= 0:
                roots_of_blocks[index] = IGNORED  # its words are read object by object
    if roots_of_blocks is not None:
        tree.merge_into_roots(roots_of_blocks)
    for one, start in zip(holders, first):
        for kind, owned in one.owned:
            tree.refer(start + kind, owned)
    for piece in session.pieces(sorted([*session.roots, *pages]), "reading what managed objects refer to"):
        tree.scan_roots(piece)
    tree.root_words(session.register_words(), rest)
    while not tree.compute(SLICE):
        session.report_progress("finding what managed objects hold", tree.progress())
    totals = tree.by_root()
    return [totals[start:end] for start, end in zip(first, first[1:])]


def _all_bounds(session: Session, holders: Sequence[Holders], first: Sequence[int], rest: int) -> tuple[array[int], array[int]]:
    """Bounds of the objects that are in no block, and the root that each gets."""
    made = [_object_bounds(session, one, start, rest) for one, start in zip(holders, first) if one.addresses]
    if len(made) > 1:  # rare: two runtimes in a process
        parts = sorted((item for bounds, owners in made for item in zip(bounds, owners)), key=lambda item: item[0])
        made = [(array("Q", [bound for bound, _ in parts]), array("I", [owner for _, owner in parts]))]
    bounds, owners = made[0] if made else (array("Q"), array("I"))
    return array("Q", [0]) + bounds, array("I", [rest]) + owners


def _roots_of_blocks(holders: Sequence[Holders], first: Sequence[int]) -> Optional[array[int]]:
    """For each block, the root of the type of the object in it, or NO_ROOT; None where no object is
    in a block."""
    made: Optional[array[int]] = None
    for one, start in zip(holders, first):
        if one.blocks and made is None and not start:
            made = one.blocks
        elif one.blocks:
            before = made or array("I", [NO_ROOT]) * len(one.blocks)
            made = array(
                "I", [old if kind == NO_ROOT else kind if kind == IGNORED else start + kind for old, kind in zip(before, one.blocks)]
            )
    return made


def _object_bounds(session: Session, one: Holders, start: int, rest: int) -> tuple[array[int], array[int]]:
    count = len(one.addresses)
    bounds, owners = array("Q", bytes(16 * count)), array("I", [rest]) * (2 * count)
    bounds[0::2] = one.addresses
    for low in range(0, count, STEP):
        high = min(low + STEP, count)
        bounds[2 * low + 1 : 2 * high : 2] = array("Q", map(int.__add__, one.addresses[low:high], one.sizes[low:high]))
        if start:
            owners[2 * low : 2 * high : 2] = array("I", (kind if kind == NO_ROOT else start + kind for kind in one.types[low:high]))
        session.report_progress("looking at what managed objects hold", low / count)
    if not start:
        owners[0::2] = one.types
    return bounds, owners
