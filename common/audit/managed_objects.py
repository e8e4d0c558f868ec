"""Find objects that variables of a managed language retain, for runtimes whose objects are not
blocks (Ruby).

Such objects refer to one another from their own memory and through buffers in blocks (the elements
of an Array). The graph of objects and buffers shows which objects each variable retains. The memory
of these objects is root memory. It gets the variable as its owner, so native memory that the
objects retain is attributed to the variable.

References from elsewhere (stacks, classes, the interpreter) do not change the owner."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Optional

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import NO_ROOT, Dominators, root_node
from findleaks.engine.terms import Kind, Totals
from findleaks.graph.joint_roots import join_names, join_roots
from findleaks.runtimes.base import Objects, Runtime, Variable
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

GRANULE = 8  # divides the address of every object and block
SOME = 1 << 18  # blocks read from the tree between two checks for Ctrl-C


class OwnedObjects(NamedTuple):
    """The objects that are retained by exactly one variable each.

    The columns `starts`, `ends` and `owners` have one value for each object, ascending by address.
    An owner is an index into `variables`, which has one variable for each name. `totals`: number
    and bytes of the objects that each variable retains. `blocks`: all objects and their buffers.
    `graph`: the references of these blocks."""

    runtime: Runtime
    variables: Sequence[Variable]
    starts: array[int]  # "Q"
    ends: array[int]  # "Q"
    owners: array[int]  # "I"
    totals: Sequence[Totals]
    blocks: Blocks
    graph: Graph
    objects: Objects  # all objects, including those that no single variable retains
    joined: Mapping[int, Sequence[Variable]]  # by index: the variables that it replaces


class _Joined(NamedTuple):
    """The dominator tree below the variables. `replaced`: see OwnedObjects.joined."""

    tree: Dominators
    variables: Sequence[Variable]
    replaced: Mapping[int, Sequence[Variable]]


def name_variable(one: Variable, runtime: str) -> str:
    """Return the name of a variable for paths: "App.cache (Ruby variable)"."""
    return one.name if one.is_local else f"{one.name} ({runtime} variable)"


def list_owned_objects(session: Session) -> list[OwnedObjects]:
    """Return the owned objects of each runtime that has variables and such objects. They are
    computed once for a session."""
    return session.once(
        list_owned_objects, lambda: [made for made in (_find_owned_objects(session, one) for one in session.runtimes) if made is not None]
    )


def _find_owned_objects(session: Session, runtime: Runtime) -> Optional[OwnedObjects]:
    session.report_progress(f"reading the variables of {runtime.name}", 0.0)
    every = sorted(runtime.variables(), key=lambda one: one.is_local)
    objects = runtime.object_nodes() if every else None
    joined = _join_directories(session, objects) if objects is not None and objects.addresses else None
    if objects is None or joined is None:
        return None
    blocks, places = joined
    graph = session.engine.graph(blocks)
    nodes = blocks, graph
    ranges = merge_ranges([*session.heap_ranges(), *objects.ranges])
    ranges = merge_ranges([*ranges, *_find_outside(ranges, objects.buffers)])
    for piece in session.pieces(ranges, f"reading the objects of {runtime.name}"):
        graph.scan_blocks(piece)
    values = [one.value for one in every]
    graph.root_words(values)
    graph.settle()
    variables, numbers = _join_by_name(every)
    tree = _compute_tree(session, runtime.name, nodes, variables, values, numbers)
    variables = _select_largest(tree, blocks, every, numbers)

    def join(joint: Sequence[tuple[int, ...]]) -> tuple[_Joined, Sequence[Totals]]:
        found, places, replaced = _join_variables(variables, numbers, joint)
        tree = _compute_tree(session, runtime.name, nodes, found, values, places)
        return _Joined(tree, found, replaced), [tree.sum_retained(root_node(number)) for number in replaced]

    def list_referrers(block: int, limit: int) -> Sequence[int]:
        session.report_progress(f"computing memory retained by variables of {runtime.name}", 0.0)
        return graph.referrers(block, limit)

    made = join_roots(tree, list_referrers, _count_global(variables), join, lambda number: variables[number].name)
    made = made or _Joined(tree, variables, {})
    tree = made.tree
    labels = array("I", [NO_ROOT]) * len(blocks)
    for number, total in enumerate(tree.by_root()):
        for first in range(0, total.blocks, SOME):
            session.report_progress(f"computing memory retained by variables of {runtime.name}", 0.0)
            blocks.claim(labels, tree.members(root_node(number), first, SOME), number)
    owners = array("I")
    for span in places:
        owners += labels[span.place : span.place + span.number]
    return _build_columns(session, runtime, made.variables, objects, owners, blocks, graph)._replace(joined=made.replaced)


def _compute_tree(
    session: Session,
    runtime: str,
    nodes: tuple[Blocks, Graph],
    variables: Sequence[Variable],
    values: Sequence[int],
    numbers: Sequence[int],
) -> Dominators:
    """Return the dominator tree of the nodes that the variables reach. `numbers`: for each of
    `values`, the index of its variable."""
    blocks, graph = nodes
    first_local = _count_global(variables)
    tree = graph.dominators(len(variables), priorities=[first_local])
    # A variable's value belongs to the variable, even if other objects refer to it.
    parts = array("I", [NO_ROOT]) * len(blocks)
    for number, index in zip(numbers, blocks.find_all(values)[0]):
        if index < len(parts) and number < first_local:
            parts[index] = number
    tree.set_owners(parts, [root_node(number) for number in range(len(variables))])
    for number, value in zip(numbers, values):
        tree.root_words([value], number)
    return session.compute(tree, f"computing memory retained by variables of {runtime}")


def _count_global(variables: Sequence[Variable]) -> int:
    """Return the number of variables that are not local. These come first."""
    return next((number for number, one in enumerate(variables) if one.is_local), len(variables))


def _join_variables(
    variables: Sequence[Variable], numbers: Sequence[int], joint: Sequence[Sequence[int]]
) -> tuple[list[Variable], list[int], dict[int, Sequence[Variable]]]:
    """Replace each set of `joint` (indices) by one variable. Returns the variables, the new index
    of each value's variable, and the value of `OwnedObjects.joined`."""
    first_of = {number: some[0] for some in joint for number in some}
    sets = {some[0]: [variables[one] for one in some] for some in joint}
    kept = [number for number in range(len(variables)) if first_of.get(number, number) == number]
    places = {number: place for place, number in enumerate(kept)}
    made = [_join_set(sets[number]) if number in sets else variables[number] for number in kept]
    return made, [places[first_of.get(number, number)] for number in numbers], {places[number]: some for number, some in sets.items()}


def _join_set(members: Sequence[Variable]) -> Variable:
    """Return one variable that stands for all of these, with their names and contents."""
    name = join_names([one.name for one in members])
    holder = name.partition(": ")[0] if ": " in name else ""
    contents = [f"{one.what}, {one.length:,} {one.unit}" if one.length is not None else one.what for one in members]
    listed = [f"{one.name[len(holder) :].lstrip('.:')}: {content}" for one, content in zip(members, contents) if content]
    return members[0]._replace(name=name, what="; ".join(listed), length=None, unit="")


def _join_by_name(variables: Sequence[Variable]) -> tuple[list[Variable], list[int]]:
    """Return the first variable with each name, and for each of `variables` the index of its name.
    Several finalizers, or several variables of a method, may have the same name."""
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(one.name, len(numbers)) for one in variables]
    first: dict[int, Variable] = {}
    for number, one in zip(found, variables):
        first.setdefault(number, one)
    return list(first.values()), found


def _select_largest(tree: Dominators, blocks: Blocks, variables: Sequence[Variable], numbers: Sequence[int]) -> list[Variable]:
    """Return for each name the variable whose value retains the most. Values that other variables
    reach too are selected last. Lengths of collections of the same type are added. `numbers`: see
    `_join_by_name`."""
    counts, lengths = Counter(numbers), Counter[tuple[int, str, str]]()
    ranks: dict[int, tuple[bool, int, int]] = {}
    found: dict[int, Variable] = {}
    for one, number, index in zip(variables, numbers, blocks.find_all([one.value for one in variables])[0]):
        length = one.length or 0
        lengths[number, one.what, one.unit] += length
        is_node = counts[number] > 1 and index < len(blocks)
        retained = tree.sum_retained(index).bytes if is_node else 0
        # The characters of a text are not a node of the tree.
        size = retained + (length if one.unit == "bytes" else 0)
        rank = is_node and tree.idom(index) == root_node(number), size, length
        if number not in found or rank > ranks[number]:
            found[number], ranks[number] = one, rank
    return [one if one.length is None else one._replace(length=lengths[number, one.what, one.unit]) for number, one in found.items()]


def _build_columns(
    session: Session, runtime: Runtime, variables: Sequence[Variable], objects: Objects, owners: array[int], blocks: Blocks, graph: Graph
) -> OwnedObjects:
    """Build the columns. `owners`: for each object, the number of its variable, or NO_ROOT."""
    starts, ends, mine = array("Q"), array("Q"), array("I")
    counts, held = [0] * len(variables), [0] * len(variables)
    for first in range(0, len(owners), SOME):
        session.report_progress(f"computing memory retained by variables of {runtime.name}", first / len(owners))
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
    return OwnedObjects(runtime, variables, starts, ends, mine, list(map(Totals, counts, held)), blocks, graph, objects, {})


def _find_outside(ranges: Sequence[Range], buffers: array[int]) -> Iterator[Range]:
    """Yield ranges of buffers that lie in none of the given ranges, which are sorted and disjoint.
    Buffers in Ruby's transient heap are left out."""
    starts, sizes = buffers[0::2], buffers[1::2]
    first = 0
    for start, end in [*ranges, Range(1 << 64, 1 << 64)]:
        last = bisect_left(starts, start, first)
        if last > first:
            yield Range(starts[first], starts[last - 1] + sizes[last - 1])
        first = bisect_left(starts, end, last)


class _ObjectRun(NamedTuple):
    """`number` adjacent objects. `first`: index of the first in the list of the runtime's objects.
    `place`: index of the first in the joined directory."""

    first: int
    number: int
    place: int


def _join_directories(session: Session, objects: Objects) -> Optional[tuple[Blocks, list[_ObjectRun]]]:
    """Return all objects and buffers in one directory, and the runs of objects in it; None if they
    overlap."""
    addresses, starts = objects.addresses, objects.buffers[0::2]
    sizes = objects.buffers[1::2]
    made = session.engine.blocks(session.target.arch, GRANULE)
    spans: list[_ObjectRun] = []

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
            spans.append(_ObjectRun(taken, last - taken, len(made)))
            made.append(addresses[taken:last], array("Q", objects.followed[taken:last]), bytes(last - taken))
            at, taken = bisect_left(starts, end, at), last
        add_buffers(at, 1 << 64)
    except ValueError:
        return None
    made.seal()
    return made, spans


class ObjectLink(NamedTuple):
    """A reference on the path from a variable: the word's address, and its value."""

    address: int
    value: int


def find_links_to(session: Session, word: int) -> Optional[tuple[OwnedObjects, Variable, list[ObjectLink]]]:
    """Return the shortest path from a variable to the object that contains this word.
    The result is the variable with its objects, and the references on the path from its value; None
    if there is no path."""
    for one in list_owned_objects(session):
        at = bisect_right(one.objects.addresses, word) - 1
        start = one.objects.addresses[at] if at >= 0 else 0
        index = one.blocks.find(start) if at >= 0 and word < start + one.objects.used[at] else -1
        chain = one.graph.path(index) if index >= 0 else []
        if chain:
            first = one.blocks.address(chain[0])
            variable = next((each for each in one.runtime.variables() if each.value == first), None)
            if variable is None:  # it refers to the inside of an object in damaged memory
                return None
            return one, variable, [_link(session, one.blocks, *both) for both in zip(chain, chain[1:])]
    return None


def _link(session: Session, blocks: Blocks, source: int, to: int) -> ObjectLink:
    """Return the first word of node `source` that refers to node `to`."""
    start, low = blocks.address(source), blocks.address(to)
    for piece in session.pieces([Range(start, start + blocks.size(source))], "reading objects"):
        for where in session.engine.search(piece, low, low + max(blocks.size(to), 1)):
            at = where - piece.address
            return ObjectLink(where, int.from_bytes(piece.data[at : at + GRANULE], session.target.arch.byteorder))
    return ObjectLink(start, low)


def list_callbacks(session: Session) -> Sequence[tuple[Runtime, Variable]]:
    """Return the callbacks of all runtimes, each with its runtime; see Runtime.callbacks. Lists of
    callbacks in leaked memory are omitted, because they retain nothing."""
    callbacks = ((runtime, one) for runtime in session.runtimes for one in runtime.callbacks())
    return session.once(list_callbacks, lambda: [each for each in callbacks if each[1].address or is_kept(session, each[1].value)])


def is_kept(session: Session, address: int) -> bool:
    """Whether an address is in a block that is not leaked, or in no block."""
    index = session.directory.blocks.find(address)
    return index < 0 or session.graph().kind(index) not in (Kind.DEFINITE, Kind.INDIRECT)
