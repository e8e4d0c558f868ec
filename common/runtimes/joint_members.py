"""Find variables of one holder that retain much memory only together: static variables of a class,
variables of a function's context."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.contract import Graph
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.graph.joint_roots import LEAST, find_joint_roots, is_joint
from findleaks.runtimes.slices import run_in_slices, stoppable_referrers
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple


class JointMembers(NamedTuple):
    """Variables of `holder` (an object). `retained`: what they retain, alone and together."""

    holder: int
    names: Sequence[str]
    values: Sequence[int]  # objects, in the order of `names`
    retained: Totals


class JointRetainer(NamedTuple):
    """Variables that retain much memory together. `name`: "static variables App: QUEUE and INDEX".
    `holder`: the object that has the variables."""

    name: str
    holder: int
    retained: Totals


def find_joint_members(
    graph: Graph, tree: Dominators, holder: int, members: Sequence[tuple[str, int]], target: Target
) -> list[JointMembers]:
    """Return sets of variables that retain at least the fraction LEAST of the memory in the tree,
    and much of it only together. The set that retains most comes first.

    members: name and object of each variable of `holder`."""
    least = LEAST * tree.total().bytes
    if len(members) < 2 or tree.sum_retained(holder).bytes < least:
        return []
    inner = _compute(tree, holder, [[value] for _, value in members], target)
    found = []
    for some in find_joint_roots(inner, stoppable_referrers(graph, target), len(members)):
        # The first field has all variables of the set, and each further field another variable.
        fields = [[members[number][1] for number in some], *([value] for number, (_, value) in enumerate(members) if number not in some)]
        retained = _compute(tree, holder, fields, target).sum_retained(root_node(0))
        if is_joint(tree, retained, [inner.sum_retained(root_node(number)) for number in some]):
            found.append(JointMembers(holder, [members[one][0] for one in some], [members[one][1] for one in some], retained))
    return sorted(found, key=lambda one: -one.retained.bytes)


def _compute(tree: Dominators, holder: int, fields: Sequence[Sequence[int]], target: Target) -> Dominators:
    """Return the dominator tree of the memory below `holder`, in which each field is a root.
    `fields`: for each field, the objects that it refers to."""
    made = tree.within(holder, len(fields))
    for number, values in enumerate(fields):
        made.refer(number, values)
    run_in_slices(made.compute, target)
    return made
