"""Match recorded blocks with the present heap, and sum them by stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.arg_types import SizeRange
from findleaks.audit.owner_tree import OwnerTree
from findleaks.engine.dominators import SHARED, node_root
from findleaks.engine.terms import Kind, State
from findleaks.injection.stub.stack_names import StackNames
from findleaks.injection.stub.table import DEEPEST, Node
from findleaks.session import Session
from findleaks.tracking.record_table import LIVE, RECORD, REPLACED, TAKEN, UNPLACED, Record, RecordTable, Sampling, read_table
from findleaks.unwind.stacks import NamedFrame

FULL = "the table of stacks was full"
MAX_HOLDERS = 3  # maximum number of holders that are named for each stack
MAX_ASKED = 500  # maximum number of held blocks of a stack whose holder is searched
FAR = 1 << 20  # maximum number of references from a root to a block
_NO_BLOCK = 0xFFFFFFFF
_FAILED = (1 << 64) - 4096  # this result of mmap and larger ones are errors


@dataclass
class Tally:
    """A number of blocks, and the bytes that were requested. Both are estimates if only some blocks
    were recorded."""

    blocks: float = 0.0
    bytes: float = 0.0

    def add(self, weight: float, size: int) -> None:
        self.blocks += weight
        self.bytes += weight * size


@dataclass
class TrackedSite:
    """The blocks of one stack. Allocated blocks are freed, held or lost. `possible`: blocks that
    only interior pointers refer to. `end`: why the stack is incomplete; "" if it is complete."""

    frames: tuple[NamedFrame, ...] = ()
    end: str = ""
    allocated: Tally = field(default_factory=Tally)
    freed: Tally = field(default_factory=Tally)
    held: Tally = field(default_factory=Tally)
    possible: Tally = field(default_factory=Tally)
    lost: Tally = field(default_factory=Tally)
    # Addresses of lost blocks; if there are none, of held blocks
    examples: list[int] = field(default_factory=list)
    # Roots, with their number of recorded blocks; largest first
    holders: list[tuple[str, int]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # indices of held blocks
    records: int = 0  # number of blocks that were recorded; fewer than `allocated` if not all were

    @property
    def fate(self) -> str:
        """The most important fate of the blocks: "lost" if any are lost, else "held" if any are
        held, else "freed"."""
        return "lost" if self.lost.blocks else "held" if self.held.blocks else "freed"

    @property
    def order(self) -> tuple[float, ...]:
        return -self.lost.bytes, -self.held.bytes, -self.allocated.bytes


class Recorded(NamedTuple):
    """The contents of the table: records, the number of calls for which there was no space
    (`missed`), and stacks."""

    records: Sequence[Record]
    missed: int
    nodes: Mapping[int, Node]


def read_records(session: Session, table: RecordTable, most: int) -> Recorded:
    """Return the first `most` of the records that existed when the session's heaps were read."""
    read = session.target.read
    taken = int.from_bytes(read(table.address + TAKEN, 8), "little")
    count = min(taken, table.records)
    every = read_table(read(table.address + table.records_at, RECORD.size * min(count, most))) if count else ()
    found = [one for one in every if one.state not in (0, REPLACED) and one.address < _FAILED]
    nodes = table.read(read(table.address + table.nodes_at, 32 * table.nodes))
    return Recorded(found, taken - count, nodes)


def find_sites(
    session: Session, recorded: Recorded, sampling: Sampling, sizes: Optional[SizeRange], names: StackNames
) -> list[TrackedSite]:
    """Return the sites, those with the most lost bytes first, then by held bytes."""
    graph, blocks = session.graph(), session.directory.blocks
    kinds = graph.kinds()
    last = {one.address: number for number, one in enumerate(recorded.records)}
    indices, usable = blocks.find_all([one.address for one in recorded.records])
    live = [
        one.state in (LIVE, UNPLACED)
        and index != _NO_BLOCK
        and last[one.address] == number
        and blocks.address(index) == one.address
        and blocks.state(index) == State.IN_USE
        for number, (one, index) in enumerate(zip(recorded.records, indices))
    ]
    wanted = _Wanted(sizes, ((one.size, size) for one, size, lives in zip(recorded.records, usable, live) if lives))
    found: dict[int, TrackedSite] = {}
    for number, (one, index, size, lives) in enumerate(zip(recorded.records, indices, usable, live)):
        if number % 65536 == 0:
            session.report_progress("joining records with blocks", number / len(recorded.records))
        if not wanted(one.size, size if lives else None):
            continue
        site = found.setdefault(one.stack, TrackedSite())
        weight = sampling.weight(one)
        site.allocated.add(weight, one.size)
        site.records += 1
        kind = Kind(kinds[index]) if lives else None
        if kind is None:
            site.freed.add(weight, one.size)
        elif kind in (Kind.DEFINITE, Kind.INDIRECT):
            site.lost.add(weight, one.size)
            site.examples.append(one.address)
        else:
            site.held.add(weight, one.size)
            site.blocks.append(index)
            if kind == Kind.POSSIBLE:
                site.possible.add(weight, one.size)
    return order_sites(found, recorded, names)


def order_sites(found: Mapping[int, TrackedSite], recorded: Recorded, names: StackNames) -> list[TrackedSite]:
    """Return these sites (by stack), with the frames named. Sites with equal frames are merged.
    Those with the most lost bytes come first, then by held bytes."""
    return sorted(_name_sites(found, recorded.nodes, names), key=lambda site: site.order)


class _Wanted:
    """Decides whether blocks have the wanted sizes, by the requested size or, as in `find`, by the
    usable size.
    The usable size of a freed block is inferred from a live block with the same requested size, or
    with the next larger one."""

    def __init__(self, sizes: Optional[SizeRange], pairs: Iterable[tuple[int, int]]) -> None:
        self._sizes = sizes
        self._usable = dict(pairs) if sizes is not None else {}

    def __call__(self, requested: int, usable: Optional[int]) -> bool:
        """`usable`: the usable size; None for a block that was freed."""
        return self._sizes is None or self._in(requested) or self._in(self._infer_size(requested) if usable is None else usable)

    def _in(self, size: int) -> bool:
        assert self._sizes is not None
        return self._sizes.low <= size <= self._sizes.high

    def _infer_size(self, requested: int) -> int:
        known = self._usable.get(requested)
        if known is None:
            known = min((usable for size, usable in self._usable.items() if size >= requested), default=requested)
            self._usable[requested] = known
        return known


def _name_sites(found: Mapping[int, TrackedSite], nodes: Mapping[int, Node], names: StackNames) -> list[TrackedSite]:
    """Return the sites with the frames of their stacks. Sites whose stacks look alike are
    merged."""
    made: dict[tuple[tuple[int, ...], str], TrackedSite] = {}
    alike: dict[tuple[tuple[NamedFrame, ...], str], TrackedSite] = {}
    for stack, site in found.items():
        keys = _keys(stack & ~1, nodes)
        key = names.follow(keys, bool(stack & 1)) if keys else ((), FULL)
        if key not in made:
            site.frames, site.end = names.name_frames(key[0]), key[1]
            # Different keys may have the same frames: a runtime may move the code of a function,
            # or compile the function again.
            made[key] = alike.setdefault((site.frames, site.end), site)
        if made[key] is not site:
            add_tallies(made[key], site)
    return list(alike.values())


def _keys(address: int, nodes: Mapping[int, Node]) -> tuple[int, ...]:
    """Return the keys of a stack's frames, innermost first; () if the stack is not in the table."""
    keys: list[int] = []
    while address and len(keys) <= DEEPEST:
        node = nodes.get(address)
        if node is None:
            return ()
        keys.append(node.key)
        address = node.parent
    return tuple(reversed(keys))


def add_tallies(into: TrackedSite, other: TrackedSite) -> None:
    """Add the blocks of one site to another."""
    for name in ("allocated", "freed", "held", "possible", "lost"):
        one, more = getattr(into, name), getattr(other, name)
        one.blocks += more.blocks
        one.bytes += more.bytes
    into.examples += other.examples
    into.blocks += other.blocks
    into.records += other.records


def name_holders(session: Session, found: Sequence[TrackedSite], holders: OwnerTree) -> None:
    """Find the roots that retain the held blocks of these sites."""
    roots: dict[int, str] = {}
    for site in found:
        counts: Counter[str] = Counter()
        for index in site.blocks[:MAX_ASKED]:
            session.report_progress("searching for roots of held blocks", 0.0)
            counts[_holder(index, holders, roots)] += 1
        site.holders = [(label, count) for label, count in counts.most_common() if label][:MAX_HOLDERS]


def _holder(index: int, holders: OwnerTree, roots: dict[int, str]) -> str:
    """Return the label of the root that alone retains a block; "" if there is none."""
    passed: list[int] = []
    node: Optional[int] = index
    while node is not None and node >= 0 and node not in roots and len(passed) < FAR:
        passed.append(node)
        node = holders.tree.idom(node)
    if node is None:
        label = ""
    elif node == SHARED:
        label = "several roots"
    else:
        label = roots[node] if node >= 0 else holders.named.all[node_root(node)].label
    roots.update(dict.fromkeys(passed, label))
    return label
