"""Compare the reference counts of leaked values with the existing references. This is for runtimes
whose values are blocks: PHP and Perl.

If a value counts more references than exist, it leaked because native code did not release a
reference. If the values of a cycle count only references within the cycle, the cycle is garbage for
a collector of cycles, if the runtime has one."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import NO_BLOCK, Totals
from findleaks.runtimes.base import MiscountedType, ReferenceCounts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.value_classes import NamedTuple

NO_VALUE = NO_ROOT  # number of the type of a block without a value


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


def compare_counts(
    graph: Graph, blocks: Blocks, found: Sequence[int], names: Sequence[str], count: Callable[[int], int], style: Style
) -> ReferenceCounts:
    """Compare the counts of the leaked values of a classified graph.

    `found` has the number of the type of each block's value, or NO_VALUE. `names` has the names of
    the types, by number. `count` returns the reference count of the value in a block, 0 if it is
    not maintained."""
    leaders, references = graph.leaders(), graph.leaked_references()
    excess = array("I", bytes(4 * len(leaders)))
    conclusions: dict[int, CountVerdict] = {}  # by leak head
    cycles: dict[int, bool] = {}  # by leak head
    types: dict[int, list[int]] = {}  # objects, excess and garbage of each type
    for index, leader in enumerate(leaders):
        number = found[index]
        if leader == NO_BLOCK:
            continue
        if leader not in cycles:
            cycles[leader] = graph.cycle(leader) > 1
        if number == NO_VALUE or number in style.parts:
            continue
        missing = count(index) - references[index]
        if missing > 0:
            excess[index] = missing
            conclusions[leader] = CountVerdict.MISSING_DECREF
            sums = types.setdefault(number, [0, 0, 0])
            sums[0], sums[1] = sums[0] + 1, sums[1] + missing
        elif cycles[leader] and number >= style.first_container:
            conclusions.setdefault(leader, style.cycle)
    verdicts = bytearray(map(conclusions.get, leaders, repeat(CountVerdict.NOTHING)))
    if style.cycle == CountVerdict.UNCOLLECTED:
        for index, verdict in enumerate(verdicts):
            if verdict == style.cycle and found[index] != NO_VALUE and found[index] not in style.parts:
                types.setdefault(found[index], [0, 0, 0])[2] += 1
    rows = sorted((MiscountedType(names[number], *sums) for number, sums in types.items()), key=lambda one: (-one.objects, one.name))
    return ReferenceCounts(verdicts, excess, _sum_verdicts(graph, blocks, conclusions, cycles), rows, style.decrement)


def _sum_verdicts(graph: Graph, blocks: Blocks, conclusions: Mapping[int, CountVerdict], heads: Iterable[int]) -> Sequence[Totals]:
    """Return the blocks and bytes of each verdict. `conclusions`: the verdicts of some leak
    heads."""
    totals = [[0, 0] for _ in CountVerdict]
    for leader in heads:
        indirect, sums = graph.indirect_totals(leader), totals[conclusions.get(leader, CountVerdict.NOTHING)]
        sums[0], sums[1] = sums[0] + 1 + indirect.blocks, sums[1] + blocks.size(leader) + indirect.bytes
    return [Totals(*sums) for sums in totals]
