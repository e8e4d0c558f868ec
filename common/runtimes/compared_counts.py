"""Compare the reference counts of leaked values with the existing references. This is for runtimes
whose values are blocks: PHP and Perl.

If the count of a value is greater than the number of existing references, the value leaked because
native code did not release a reference. If the values of a cycle count only references within the
cycle, the cycle is garbage. A collector of cycles frees it, if the runtime has one. A value that
refers to itself is such a cycle, too. Graphs have no references of a block to itself, so these are
read from memory."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import Kind, Totals
from findleaks.runtimes.base import MiscountedType, ReferenceCounts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.target.arch import Arch
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

NO_VALUE = NO_ROOT  # number of the type of a block without a value
# Matches leaked blocks in Graph.kinds, which has one byte for each block
_LEAKED = re.compile(b"[" + bytes([Kind.DEFINITE, Kind.INDIRECT]) + b"]")
MOST_BYTES = 1 << 12  # maximum bytes read of a value; large values store references in other blocks


class Style(NamedTuple):
    """How a runtime counts references.

    `decrement`: the function that native code calls to drop a reference. `cycle`: the conclusion
    for a cycle whose values count only references that exist. `parts`: numbers of types that have
    no count, such as elements of arrays. Values with a number from `first_container` on may form a
    cycle."""

    decrement: str
    cycle: CountVerdict
    parts: Sequence[int]
    first_container: int


class CountedValues(NamedTuple):
    """The values of a runtime. `found` has the number of the type of each block's value, or
    NO_VALUE. `names` has the names of the types, by number. `read_count` returns the reference
    count of the value in a block, 0 if it is not maintained. `find_offset` returns the number of
    bytes from the start of a block to the address by which other values refer to its value."""

    found: Sequence[int]
    names: Sequence[str]
    read_count: Callable[[int], int]
    find_offset: Callable[[int], int]


def compare_counts(
    pieces: Iterable[Piece], arch: Arch, graph: Graph, blocks: Blocks, values: CountedValues, style: Style
) -> ReferenceCounts:
    """Compare the counts of the leaked values of a classified graph. `pieces` is the memory of all
    blocks."""
    found = values.found
    uncounted = {NO_VALUE, *style.parts}
    leaked = array("I", (match.start() for match in _LEAKED.finditer(graph.kinds())))
    counted = array("I", (index for index in leaked if found[index] not in uncounted))
    excess = array("I", bytes(4 * len(blocks)))
    if not counted:  # the rest takes time for each block
        verdicts = bytearray([CountVerdict.NOTHING]) * len(blocks)
        return ReferenceCounts(verdicts, excess, _sum_verdicts(graph, blocks, {}), [], style.decrement)
    leak_heads, references = graph.leak_heads(), graph.leaked_references()
    for index in counted:
        excess[index] = max(0, values.read_count(index) - references[index])
    own = _count_own_references(pieces, arch, blocks, array("I", filter(excess.__getitem__, counted)), values.find_offset)
    for index, number in own.items():
        excess[index] = max(0, excess[index] - number)
    cycles = {leak_head: graph.cycle(leak_head) > 1 for leak_head in dict.fromkeys(map(leak_heads.__getitem__, counted))}
    conclusions: dict[int, CountVerdict] = {}  # by leak head
    types: dict[int, list[int]] = {}  # objects, excess and garbage of each type
    for index in counted:
        leak_head = leak_heads[index]
        if excess[index]:
            conclusions[leak_head] = CountVerdict.MISSING_DECREF
            sums = types.setdefault(found[index], [0, 0, 0])
            sums[0], sums[1] = sums[0] + 1, sums[1] + excess[index]
        elif index in own or (cycles[leak_head] and found[index] >= style.first_container):
            conclusions.setdefault(leak_head, style.cycle)
    verdicts = bytearray([CountVerdict.NOTHING]) * len(blocks)
    for index in leaked if conclusions else ():
        verdicts[index] = conclusions.get(leak_heads[index], CountVerdict.NOTHING)
    if style.cycle == CountVerdict.UNCOLLECTED:
        for index in leaked:
            if verdicts[index] == style.cycle and found[index] != NO_VALUE and found[index] not in style.parts:
                types.setdefault(found[index], [0, 0, 0])[2] += 1
    rows = sorted((MiscountedType(values.names[number], *sums) for number, sums in types.items()), key=lambda one: (-one.objects, one.name))
    return ReferenceCounts(verdicts, excess, _sum_verdicts(graph, blocks, conclusions), rows, style.decrement)


def _count_own_references(
    pieces: Iterable[Piece], arch: Arch, blocks: Blocks, indices: Sequence[int], find_offset: Callable[[int], int]
) -> dict[int, int]:
    """Return for each block the number of its words that are the address of the value in the block.
    The key is the index of the block. Blocks without such words are omitted. `indices`: the blocks,
    ascending. `pieces`: see compare_counts. `find_offset`: see CountedValues."""
    found: dict[int, int] = {}
    starts = array("Q", map(blocks.address, indices))
    for piece in pieces if starts else ():
        base, words = words_of(piece, arch)
        end = piece.address + len(piece.data)
        for place in range(bisect_left(starts, piece.address - MOST_BYTES), bisect_left(starts, end)):
            index, start = indices[place], starts[place]
            low, high = ((bound - base) // arch.word for bound in (start, start + min(blocks.size(index), MOST_BYTES)))
            number = words[max(low, 0) : max(high, 0)].tolist().count(start + find_offset(index))
            if number:
                found[index] = found.get(index, 0) + number
    return found


def _sum_verdicts(graph: Graph, blocks: Blocks, conclusions: Mapping[int, CountVerdict]) -> Sequence[Totals]:
    """Return the blocks and bytes of each verdict. `conclusions`: the verdicts of some leak
    heads."""
    totals = [Totals(0, 0) for _ in CountVerdict]
    for leak_head, verdict in conclusions.items():
        totals[verdict] = Totals.sum_of((totals[verdict], Totals(1, blocks.size(leak_head)), graph.indirect_totals(leak_head)))
    every = Totals.sum_of(map(graph.totals, (Kind.DEFINITE, Kind.INDIRECT)))
    totals[CountVerdict.NOTHING] = every.minus(Totals.sum_of(totals))
    return totals
