"""Find roots that retain memory only together, such as a table and a list of the same objects.

No single root dominates such memory, so the dominator tree attributes it to no root. If only a few
roots reach it, they own it together. A second tree, in which they are one root, attributes the
memory to them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Optional, TypeVar

from findleaks.engine.dominators import SHARED, Dominators, RootSet, node_root, root_node
from findleaks.engine.terms import Totals
from findleaks.formatting import join_words

_Made = TypeVar("_Made")
_Root = TypeVar("_Root")

LEAST = 0.1  # fraction of all memory that several roots must retain together
MOST_ROOTS = 4  # maximum number of roots that are joined; more have no common purpose
_EXAMINED = 1 << 13  # blocks from which samples are taken; several roots reach each
_SAMPLES = 12  # blocks whose roots are determined; each needs a few searches of all references
_MOST_STEPS = 8  # blocks whose referrers are searched to find the roots of one sample
_MOST_REFERRERS = 64  # referrers of one block; more have no common purpose
# Maximum number of steps up the tree from one block, and for one sample
_FAR, _FAR_IN_ALL = 1 << 12, 1 << 15
_MARKS = (".", "::", "->")  # marks between the name of a holder and that of its variable
_BRACKETS = ("()", "[]", "{}", "<>")


def join_roots(
    tree: Dominators,
    referrers: Callable[[int, int], Sequence[int]],
    eligible: int,
    rebuild: Callable[[Sequence[tuple[int, ...]]], tuple[_Made, Sequence[Totals]]],
    name: Callable[[int], str],
) -> Optional[_Made]:
    """Return the result of `rebuild` for the sets of roots that retain much memory only together;
    None if there are no such sets.

    For the other arguments, see `find_joint_roots`. `rebuild` computes a tree in which each set is
    one root. It returns a result, and what each set retains in this tree."""
    return rebuild_until_joint(tree, find_joint_roots(tree, referrers, eligible, name), rebuild)


def rebuild_until_joint(
    tree: Dominators, joint: list[tuple[int, ...]], rebuild: Callable[[Sequence[tuple[int, ...]]], tuple[_Made, Sequence[Totals]]]
) -> Optional[_Made]:
    """Return the result of `rebuild` for those of these sets that retain much memory only together;
    None if there are none. For `rebuild`, see `join_roots`."""
    while joint:
        made, totals = rebuild(joint)
        members = ([tree.sum_retained(root_node(number)) for number in some] for some in joint)
        proven = [some for some, total, alone in zip(joint, totals, members) if is_joint(tree, total, alone)]
        if proven == joint:
            return made
        joint = proven
    return None


def is_joint(tree: Dominators, together: Totals, alone: Sequence[Totals]) -> bool:
    """Return whether roots or fields retain much memory only together. `alone`: what each of them
    retains. `together`: what they retain as one root."""
    members = sum(one.bytes for one in alone)
    joint = together.bytes - members
    return joint >= LEAST * tree.total().bytes and joint >= members


def find_joint_roots(
    tree: Dominators, referrers: Callable[[int, int], Sequence[int]], eligible: int, name: Optional[Callable[[int], str]] = None
) -> list[tuple[int, ...]]:
    """Return sets of roots (numbers, ascending) that probably retain much memory together. The sets
    are disjoint. The caller must check with a second tree what they retain.

    tree: a computed tree. referrers: see Graph.referrers. eligible: the roots below this number may
    be joined; they have the first priority. name: returns the name of a root.
    If one block retains most of the shared memory, this block explains the memory. Then only roots
    with a common holder are joined."""
    shared, least = tree.sum_retained(SHARED).bytes, LEAST * max(tree.total().bytes, 1)
    if shared < least:
        return []
    children = tree.children(SHARED, _EXAMINED)
    ends = list(accumulate(child.bytes for child in children))
    # The bytes are divided into equal parts. The block in the middle of each part is a sample.
    middles = ((2 * at + 1) * ends[-1] // (2 * _SAMPLES) for at in range(_SAMPLES)) if children else ()
    samples = dict.fromkeys(min(bisect_right(ends, middle), len(children) - 1) for middle in middles)
    votes: dict[frozenset[int], int] = {}
    for at in samples:
        roots = _find_roots_that_reach(tree, referrers, eligible, children[at].block)
        is_one_block = name is not None and 2 * children[at].bytes >= shared
        if roots is not None and len(roots) > 1 and (name is None or not is_one_block or find_holder([*map(name, roots)])):
            votes[roots] = votes.get(roots, 0) + 1
    likely = [roots for roots in votes if 2 * votes[roots] * shared >= least * len(samples)]
    return _unite(sorted(likely, key=lambda one: (-votes[one], sorted(one))))


def select_joint_roots(tree: Dominators, sets: Iterable[RootSet], name: Callable[[int], str]) -> list[tuple[int, ...]]:
    """Return the sets of roots that probably retain much memory together, like `find_joint_roots`.
    `sets`: the roots that reach the shared memory; see RootSets.sets."""
    least = LEAST * max(tree.total().bytes, 1)
    largest = next(iter(tree.children(SHARED, 1)), None)
    block = largest.bytes if largest is not None and 2 * largest.bytes >= tree.sum_retained(SHARED).bytes else 0
    likely = [one for one in sets if len(one.roots) > 1 and one.bytes >= least]
    likely = [one for one in likely if not 0 < block <= one.bytes or find_holder([*map(name, one.roots)])]
    return _unite([frozenset(one.roots) for one in likely])


def _unite(sets: Iterable[frozenset[int]]) -> list[tuple[int, ...]]:
    """Unite the sets that have roots in common, the first ones first. A union has at most
    MOST_ROOTS."""
    found: list[frozenset[int]] = []
    for roots in sets:
        near = [one for one in found if one & roots]
        union = roots.union(*near)
        if len(union) <= MOST_ROOTS:
            found = [one for one in found if one not in near] + [union]
    return [tuple(sorted(one)) for one in found]


def _find_roots_that_reach(
    tree: Dominators, referrers: Callable[[int, int], Sequence[int]], eligible: int, block: int
) -> Optional[frozenset[int]]:
    """Return the eligible roots that reach a block through other blocks; None if there are too
    many. Roots of later priorities do not count."""
    roots: set[int] = set()
    waiting, seen, climbed = [block], {block}, 0
    for step, index in enumerate(waiting):  # this list grows
        sources = referrers(index, _MOST_REFERRERS + 1) if step < _MOST_STEPS else None
        if sources is None or len(sources) > _MOST_REFERRERS:
            return None
        for source in sources:
            top, steps = _find_top(tree, source)
            climbed += steps
            if climbed > _FAR_IN_ALL:
                return None
            if top is not None and top >= 0 and top not in seen:
                seen.add(top)
                waiting.append(top)
            elif top is not None and top < SHARED and node_root(top) < eligible:
                roots.add(node_root(top))
        if len(roots) > MOST_ROOTS:
            return None
    return frozenset(roots)


def _find_top(tree: Dominators, block: int) -> tuple[Optional[int], int]:
    """Return the root that retains a block. If no single root does, return the outermost block that
    retains it, which may be the block itself. Return None if this is unknown. Also return the
    number of steps."""
    node = block
    for step in range(1, _FAR + 1):
        above = tree.idom(node)
        if above is None:
            return None, step
        if above == SHARED:
            return node, step
        if above < SHARED:
            return above, step
        node = above
    return None, _FAR


def replace_sets(roots: Sequence[_Root], joint: Sequence[Sequence[int]], join: Callable[[Sequence[_Root]], _Root]) -> list[_Root]:
    """Replace each set of `joint` (numbers of roots) by the result of `join`. Returns all roots;
    the joined ones come first."""
    taken = {number for some in joint for number in some}
    joined = [join([roots[number] for number in some]) for some in joint]
    return [*joined, *(one for number, one in enumerate(roots) if number not in taken)]


def join_names(names: Sequence[str]) -> str:
    """Return one name for several variables: "REG: @by_id and @all" for REG.@by_id and REG.@all,
    "App: QUEUE and CACHE" for App::QUEUE and App::CACHE; "a.x and b.y" if they have no holder in
    common."""
    holder = find_holder(names)
    text = join_words([name[len(holder) :] for name in names])
    return f"{holder.rstrip('.:->')}: {text}" if holder else text


def find_holder(names: Sequence[str]) -> str:
    """Return the common beginning of the names of variables, which is the name of their holder with
    a mark: "REG." for REG.@by_id and REG.@all; "" if they have no holder in common."""
    first, last = min(names), max(names)
    common = next((at for at, pair in enumerate(zip(first, last)) if pair[0] != pair[1]), min(len(first), len(last)))
    ends = [end for end in range(common, 1, -1) if first.endswith(_MARKS, 1, end)]
    return next((first[:end] for end in ends if _is_holder(first[:end], [name[end:] for name in names])), "")


def _is_holder(holder: str, variables: Sequence[str]) -> bool:
    """Whether this beginning of names can be the name of a holder. GCC names static variables of
    functions "table.0" and "table.1". A mark in brackets separates parts of a type:
    "read(io::A)"."""
    text = holder.replace("->", "")
    is_whole = all(text.count(pair[0]) == text.count(pair[1]) for pair in _BRACKETS)
    return is_whole and not any(name[:1].isdigit() for name in variables)
