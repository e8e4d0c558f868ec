"""Roots of a managed heap in groups that have a name in the program, such as variables, and the
dominator tree below these groups."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.contract import Graph
from findleaks.engine.dominators import Dominators
from findleaks.engine.terms import Totals
from findleaks.graph.joint_roots import join_names, join_roots, replace_sets
from findleaks.runtimes.slices import run_in_slices, stoppable_referrers
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_VARIABLE = "variable"  # the sort of a group, and the beginning of its name


class RootGroup(NamedTuple):
    """Roots that are listed as one: a variable, or all threads with the same stack.

    `words`: the values of their words. `sort`: "variable", "threads", "registers" or "records" (of
    the runtime). `address`: that of a variable, else 0. `threads`: the number of threads.
    `priority`: memory that roots with a lower priority number reach does not count for this group.
    `members`: the names of several variables that retain much memory only together; () for other
    groups."""

    name: str
    sort: str
    words: Sequence[int]
    address: int = 0
    threads: int = 0
    priority: int = 0
    members: Sequence[str] = ()


class RootTree(NamedTuple):
    """The dominator tree below groups of roots, in ascending order of priority. The number of a
    root in the tree is the index of its group. `totals` is what each retains."""

    tree: Dominators
    groups: Sequence[RootGroup]
    totals: Sequence[Totals]


def compute_root_tree(graph: Graph, groups: Sequence[RootGroup], target: Target) -> RootTree:
    """Return what each group of roots retains. Variables that retain much memory only together
    become one group."""
    groups = sorted(groups, key=lambda one: one.priority)
    tree = _compute(graph, groups, target)
    first = [one for one in groups if one.priority == groups[0].priority]
    found = RootTree(tree, groups, tree.by_root())
    if not all(one.sort == _VARIABLE for one in first):
        return found

    def join(joint: Sequence[tuple[int, ...]]) -> tuple[RootTree, Sequence[Totals]]:
        joined = replace_sets(groups, joint, _join_groups)
        tree = _compute(graph, joined, target)
        made = RootTree(tree, joined, tree.by_root())
        return made, made.totals[: len(joint)]

    return join_roots(tree, stoppable_referrers(graph, target), len(first), join, lambda number: groups[number].name) or found


def _compute(graph: Graph, groups: Sequence[RootGroup], target: Target) -> Dominators:
    priorities = [sum(one.priority < priority for one in groups) for priority in range(1, groups[-1].priority + 1)]
    tree = graph.dominators(len(groups), priorities=priorities)
    tree.expect_leaf_trees()
    for number, one in enumerate(groups):
        tree.root_words(one.words, number)
    run_in_slices(tree.compute, target)
    return tree


def _join_groups(members: Sequence[RootGroup]) -> RootGroup:
    """Return one group that stands for several variables."""
    names = [one.name.removeprefix(f"{_VARIABLE} ") for one in members]
    words = [word for one in members for word in one.words]
    return RootGroup(f"{_VARIABLE}s {join_names(names)}", _VARIABLE, words, priority=members[0].priority, members=names)
