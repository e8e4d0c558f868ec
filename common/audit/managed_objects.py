"""What variables of a managed language alone lead to, where its objects are no blocks (Ruby).

Objects refer to one another in their own memory and through buffers in blocks (an Array's
elements). A graph of both shows which objects each variable retains. So the objects' memory, which
is root memory, gets an owner: what native memory they hold is then held by that variable.
References from elsewhere (stacks, classes, the interpreter) take nothing from a variable."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple, Optional

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import NO_ROOT, root_node
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Objects, Runtime, Variable
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges

GRANULE = 8  # divides the address of every object and block
SOME = 1 << 18  # blocks taken from the tree between two checks for Ctrl-C


class OwnedObjects(NamedTuple):
    """Objects that one variable retains: columns ascending by address, `owners` numbers in
    `variables`. `totals`: of each variable's objects, their number and bytes. `graph` is of
    `blocks`: objects, and buffers of theirs."""

    runtime: Runtime
    variables: Sequence[Variable]
    starts: array[int]  # "Q"
    ends: array[int]  # "Q"
    owners: array[int]  # "I"
    totals: Sequence[Totals]
    blocks: Blocks
    graph: Graph
    objects: Objects  # all of them


def owned_objects(session: Session) -> list[OwnedObjects]:
    """For each runtime with such objects. Computed once for a session."""
    return session.once(owned_objects, lambda: [made for made in (_owned(session, one) for one in session.runtimes) if made is not None])


def _owned(session: Session, runtime: Runtime) -> Optional[OwnedObjects]:
    session.report_progress(f"reading the variables of {runtime.name}", 0.0)
    variables = runtime.variables()
    objects = runtime.object_nodes() if variables else None
    joined = _joined(session, objects) if objects is not None and objects.addresses else None
    if objects is None or joined is None:
        return None
    blocks, places = joined
    graph = session.engine.graph(blocks)
    ranges = merge_ranges([*session.heap_ranges(), *objects.ranges])
    ranges = merge_ranges([*ranges, *_beside(ranges, objects.buffers)])
    for piece in session.pieces(ranges, f"reading the objects of {runtime.name}"):
        graph.scan_blocks(piece)
    graph.root_words([one.value for one in variables])
    graph.settle()
    tree = graph.dominators(len(variables))
    # A variable's value is the variable's, whatever other objects refer to it.
    parts = array("I", [NO_ROOT]) * len(blocks)
    for number, index in enumerate(blocks.find_all([one.value for one in variables])[0]):
        if index < len(parts):
            parts[index] = number
    tree.set_owners(parts, [root_node(number) for number in range(len(variables))])
    for number, one in enumerate(variables):
        tree.root_words([one.value], number)
    session.computed(tree, f"finding what variables of {runtime.name} hold")
    labels = array("I", [NO_ROOT]) * len(blocks)
    for number, total in enumerate(tree.by_root()):
        for first in range(0, total.blocks, SOME):
            session.report_progress(f"finding what variables of {runtime.name} hold", 0.0)
            blocks.claim(labels, tree.members(root_node(number), first, SOME), number)
    owners = array("I")
    for span in places:
        owners += labels[span.place : span.place + span.number]
    return _made(session, runtime, variables, objects, owners, blocks, graph)


def _made(
    session: Session, runtime: Runtime, variables: Sequence[Variable], objects: Objects, owners: array[int], blocks: Blocks, graph: Graph
) -> OwnedObjects:
    """`owners`: of each object, the number of its variable, or NO_ROOT."""
    starts, ends, mine = array("Q"), array("Q"), array("I")
    counts, held = [0] * len(variables), [0] * len(variables)
    for first in range(0, len(owners), SOME):
        session.report_progress(f"finding what variables of {runtime.name} hold", first / len(owners))
        part = slice(first, first + SOME)
        taken = bytes(map(NO_ROOT.__ne__, owners[part]))
        found = array("Q", compress(owners[part], taken))
        some = array("Q", compress(objects.addresses[part], taken))
        starts += some
        ends.extend(map(int.__add__, some, compress(objects.used[part], taken)))
        mine.extend(iter(found))
        for number, count in zip(*session.engine.sum_by_value(found, array("Q"))):
            counts[number] += count
        for number, size in zip(*session.engine.sum_by_value(found, array("Q", compress(objects.sizes[part], taken)))):
            held[number] += size
    return OwnedObjects(runtime, variables, starts, ends, mine, list(map(Totals, counts, held)), blocks, graph, objects)


def _beside(ranges: Sequence[Range], buffers: array[int]) -> Iterator[Range]:
    """Where buffers are in none of these sorted, disjoint ranges (but in Ruby's transient heap)."""
    starts, sizes = buffers[0::2], buffers[1::2]
    first = 0
    for start, end in [*ranges, Range(1 << 64, 1 << 64)]:
        last = bisect_left(starts, start, first)
        if last > first:
            yield Range(starts[first], starts[last - 1] + sizes[last - 1])
        first = bisect_left(starts, end, last)


class _Span(NamedTuple):
    """`number` objects in turn, from `first` on; in the joined directory, from `place` on."""

    first: int
    number: int
    place: int


def _joined(session: Session, objects: Objects) -> Optional[tuple[Blocks, list[_Span]]]:
    """All objects and buffers in one directory; None where they contradict one another."""
    addresses, starts = objects.addresses, objects.buffers[0::2]
    sizes = objects.buffers[1::2]
    made = session.engine.blocks(session.target.arch, GRANULE)
    spans: list[_Span] = []

    def add_buffers(first: int, end: int) -> int:
        last = bisect_left(starts, end, first)
        made.append(starts[first:last], sizes[first:last], bytes(last - first))
        return last

    at = taken = 0
    try:
        for start, end in objects.ranges:
            session.report_progress("reading managed heaps", 0.0)
            at = add_buffers(at, start)
            last = bisect_left(addresses, end, taken)
            spans.append(_Span(taken, last - taken, len(made)))
            made.append(addresses[taken:last], array("Q", objects.followed[taken:last]), bytes(last - taken))
            at, taken = bisect_left(starts, end, at), last
        add_buffers(at, 1 << 64)
    except ValueError:
        return None
    made.seal()
    return made, spans


class Link(NamedTuple):
    """A reference on the way from a variable: the word's address, and its value."""

    address: int
    value: int


def links_to(session: Session, word: int) -> Optional[tuple[OwnedObjects, Variable, list[Link]]]:
    """The shortest way from a variable to the object that has this word in its memory: the
    variable, and the references from its value on. None if none leads there."""
    for one in owned_objects(session):
        at = bisect_right(one.objects.addresses, word) - 1
        start = one.objects.addresses[at] if at >= 0 else 0
        index = one.blocks.find(start) if at >= 0 and word < start + one.objects.used[at] else -1
        chain = one.graph.path(index) if index >= 0 else []
        if chain:
            first = one.blocks.address(chain[0])
            variable = next(each for each in one.variables if each.value == first)
            return one, variable, [_link(session, one.blocks, *both) for both in zip(chain, chain[1:])]
    return None


def _link(session: Session, blocks: Blocks, source: int, to: int) -> Link:
    """The first word of one node that refers to another."""
    start, low = blocks.address(source), blocks.address(to)
    for piece in session.pieces([Range(start, start + blocks.size(source))], "reading objects"):
        for where in session.engine.search(piece, low, low + max(blocks.size(to), 1)):
            at = where - piece.address
            return Link(where, int.from_bytes(piece.data[at : at + GRANULE], session.target.arch.byteorder))
    return Link(start, low)
