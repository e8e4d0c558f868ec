"""The objects of a runtime's own heap, the references among them, and their roots: Go, the JVM and
V8.

The commands `whatis`, `refs`, `path` and `runtime` use this interface. Subclasses implement what
depends on the runtime: how an object is read, and what its roots are."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, islice
from typing import Optional

from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.engine.dominators import Dominators, root_node
from findleaks.engine.terms import Kind, State, Totals
from findleaks.runtimes.absent_memory import find_resident_bytes
from findleaks.runtimes.joint_members import JointRetainer
from findleaks.runtimes.referrers import ReferrerSearch
from findleaks.runtimes.root_groups import RootGroup, RootTree, compute_root_tree
from findleaks.runtimes.slices import SLICE, run_in_slices
from findleaks.target.base import Target
from findleaks.target.elf import occurrences
from findleaks.value_classes import NamedTuple

LIVE, GARBAGE = (Kind.REACHABLE, Kind.POSSIBLE), (Kind.DEFINITE, Kind.INDIRECT)
"""The kinds of live objects and of garbage, in a graph of all objects."""

NO_ROOT = "a root that was not found"

NEARLY_ALL = 0.8  # of what an object retains
_LEAST_SHARE = 50
MOST_LEVELS, MOST_NAMED = 32, 8  # levels of the tree that are descended; types that a path names
_MOST_SPLIT, _MOST_CHILDREN = 64, 16  # objects that `retainers` looks at; parts of each
_EXAMPLES, _MOST_SAMPLED = 7, 1 << 20  # objects whose paths are compared; objects of such a heap
_MOST_TRIED = 1 << 14  # objects of a larger heap that are tried until one is live


def count_labels(engine: Engine, blocks: Blocks, labels: array[int], tree: Dominators, node: int, most: int) -> dict[int, Totals]:
    """Return the objects that a node of a computed tree retains, by label. If there are more than
    `most`, the first ones are counted."""
    counts: dict[int, list[int]] = {}
    for first in range(0, most, SLICE):
        members = tree.members(node, first, min(SLICE, most - first))
        values = array("Q", map(labels.__getitem__, members))
        if members:
            for at, weights in enumerate((array("Q"), array("Q", blocks.columns_of(members).size))):
                for label, number in zip(*engine.sum_by_value(values, weights)):
                    counts.setdefault(label, [0, 0])[at] += number
        if len(members) < SLICE:
            break
    return {label: Totals(*pair) for label, pair in counts.items()}


def join_path(names: list[str], plain: tuple[str, ...] = ()) -> str:
    """Return the names of a path in words. In the middle of a long path, only the first and the
    last name are kept that do not begin with one of `plain`. If `plain` is empty, the whole middle
    is left out."""
    if len(names) > MOST_NAMED:
        middle = range(MOST_NAMED // 2, len(names) - MOST_NAMED // 2)
        # The type in "java.lang.Class of App static .CACHE" is App.
        types = {at: names[at].rpartition(" of ")[2] for at in middle if plain}
        notable = [at for at, name in types.items() if not name.startswith(plain) and not name.endswith(("[]", "…"))]
        kept = [*range(middle.start), *dict.fromkeys(notable[:1] + notable[-1:]), *range(middle.stop, len(names))]
        gaps = {after for before, after in zip(kept, kept[1:]) if after > before + 1}
        names = [part for at in kept for part in (["…", names[at]] if at in gaps else [names[at]])]
    return " → ".join(names)


class ManagedObject(NamedTuple):
    """An object. `block`: the index of its block in the graph. `size`: in bytes. `is_live`: whether
    a root reaches it; None if this is unknown."""

    block: int
    address: int
    size: int
    type: str
    is_live: Optional[bool]


class ObjectField(NamedTuple):
    """A field of an object, or an element of an array. `size`: in bytes. The value of a reference
    is the address of an object. `text`: the value as text if it is not a reference: "true",
    "3.5"."""

    offset: int
    size: int
    name: str
    value: int
    is_reference: bool
    text: str = ""


class ObjectWord(NamedTuple):
    """A reference to an object. `address`: where it is stored (0: not in memory). `value`: the
    address that it refers to.

    `name`: the name of the field ("" if unknown), or a description of a root. `register` and `tid`
    are set if the root is a register of a thread."""

    address: int
    value: int
    name: str = ""
    register: str = ""
    tid: int = 0

    def describe_root(self) -> str:
        """Return a phrase for this root."""
        if self.register:
            return f"register {self.register} of thread {self.tid}"
        return self.name or (f"the word at {self.address:#x}" if self.address else NO_ROOT)


class Retainer(NamedTuple):
    """An object, and the number and bytes of the objects that it retains, itself included."""

    object: ManagedObject
    retained: Totals


class ObjectRoot(NamedTuple):
    """A root of the objects, or several of the same name, and the objects that only these roots
    retain. `name`: "static variable App.cache". `sort`: see results.roots.HeapRoot. `values`: the
    number of objects that they refer to. `address` and `type`: of the one that retains most.
    `members`: the names of several variables that retain much memory only together, or ()."""

    name: str
    sort: str
    values: int
    address: int
    type: str
    retained: Totals
    members: Sequence[str] = ()


class ObjectGraph(ReferrerSearch):
    """The objects as blocks. `graph` has their references and is marked; it is None if live objects
    cannot be distinguished from garbage. `noun`: the word for an object: "Go object".
    `root_count`: the number of roots of the dominator tree, each of a later priority than the
    previous one; see `dominators`. `plain_types`: see join_path."""

    noun: str
    root_count = 1
    plain_types: tuple[str, ...] = ()

    def __init__(self, target: Target, engine: Engine, blocks: Blocks, graph: Optional[Graph]) -> None:
        self.target, self.engine, self.blocks, self.graph = target, engine, blocks, graph

    def type_of(self, index: int) -> str:
        """Return the name of an object's type."""
        raise NotImplementedError

    def noun_of(self, index: int) -> str:
        """Return the noun for an object ("Go object")."""
        return self.noun

    def fields_of(self, index: int, most: int) -> Optional[Sequence[ObjectField]]:
        """Return at most `most` fields or elements (0: all); None if the object is read as
        words."""
        return None

    def name_member(self, index: int, offset: int) -> str:
        """Return the name of the field at this offset in bytes, at least 0 (".Next"), or ""."""
        return ""

    def name_implicit(self, source: int, target: int) -> str:
        """Return a phrase for a reference that is in no field ("its class"), or ""."""
        return ""

    def references_of(self, index: int, low: int, high: int) -> Iterator[ObjectWord]:
        """Yield the references of an object with a value in [low, high), in ascending order."""
        raise NotImplementedError

    def roots_to(self, low: int, high: int) -> Iterator[ObjectWord]:
        """Yield the roots with a value in [low, high)."""
        raise NotImplementedError

    def add_roots(self, tree: Dominators, root: int) -> None:
        """Add all roots to a dominator tree, as its root number `root`, or as `root_count` roots
        from this number on."""
        raise NotImplementedError

    def root_groups(self) -> Optional[Sequence[RootGroup]]:
        """Return all roots in groups, in any order; None if roots have no names."""
        return None

    @cached_property
    def root_tree(self) -> Optional[RootTree]:
        """What each group of roots retains; None if roots have no names."""
        groups = self.root_groups() if self.graph is not None else None
        if not groups or self.graph is None:
            return None
        return compute_root_tree(self.graph, groups, self.target)

    def labels(self) -> tuple[array[int], Sequence[str]]:
        """Return the number of each object's type ("H" or "I"), and the names of the types by
        number. If there is no name with an object's number, the type of the object is unknown."""
        raise NotImplementedError

    def find(self, address: int) -> Optional[ManagedObject]:
        """Return the object that contains an address, or None."""
        found = self.blocks.lookup(address)
        if found is None or found[3] != State.IN_USE:
            return None
        return self.object(found[0])

    def object(self, index: int) -> ManagedObject:
        """Return the object with this index."""
        is_live = None if self.graph is None else self.graph.kind(index) in LIVE
        start, end = self.extent(index)
        return ManagedObject(index, start, end - start, self.type_of(index), is_live)

    def extent(self, index: int) -> tuple[int, int]:
        """Return start and end of an object, without a header before the address that references
        have."""
        return self.blocks.address(index), self.blocks.address(index) + max(self.blocks.size(index), 1)

    def referrers(self, index: int) -> Sequence[int]:
        """Return the indices of the objects that refer to an object, ascending."""
        return self.graph.referrers(index) if self.graph is not None else ()

    def path(self, index: int) -> Sequence[int]:
        """Return a shortest chain of objects, from one to which a root refers; () if no root
        reaches the object."""
        return self.graph.path(index) if self.graph is not None else ()

    def link(self, source: int, target: int) -> ObjectWord:
        """Return the reference from one object to another. A reference to the start of the target
        is preferred. The address is 0 if the reference is in no field; see `name_implicit`."""
        low, high = self.extent(target)
        best: Optional[ObjectWord] = None
        for one in self.references_of(source, self.blocks.address(target), high):
            if best is None or one.value == low:
                best = one
            if best.value == low:
                break
        return best if best is not None else ObjectWord(0, low, self.name_implicit(source, target))

    @cached_property
    def dominators(self) -> Optional[Dominators]:
        """The dominator tree of the live objects; None if they are unknown."""
        if self.graph is None:
            return None
        tree = self.graph.dominators(self.root_count, priorities=range(1, self.root_count))
        tree.expect_leaf_trees()
        self.add_roots(tree, 0)
        run_in_slices(tree.compute, self.target)
        return tree

    @cached_property
    def absent(self) -> Mapping[int, int]:
        """The number of bytes that are neither resident nor in swap, by index of the live object.
        Objects with few such bytes are left out. {} if this is not known for the runtime."""
        return {}

    def resident_of(self, index: int, retained: Totals) -> Optional[int]:
        """Return the resident bytes of what a live object retains (`retained`). None if nearly all
        is resident, or if this is unknown."""
        return find_resident_bytes(self.dominators, index, retained.bytes, self.absent) if self.dominators is not None else None

    def is_split(self, index: int) -> bool:
        """Whether `retainers` returns the parts of an object instead of the object, because the
        author of a program would not look for it."""
        return False

    def owner_of(self, index: int) -> int:
        """Return the object to which an object belongs (an array of elements); else the object
        itself."""
        return index

    def retainers(self, most: int) -> list[Retainer]:
        """Return at most `most` objects that retain the most memory, none of which retains another
        one. Those with the most bytes come first. Objects that retain less than 1/50 of the live
        objects are left out.

        If one object of another type retains nearly all that an object retains, it is returned
        instead: for example, the table of a map instead of the owner of the map."""
        tree = self.dominators
        if tree is None:
            return []
        found: list[Retainer] = []
        least, seen = tree.total().bytes - sum(self.absent.values()), 0
        waiting = [one for root in range(self.root_count) for one in tree.children(root_node(root), max(most, _MOST_CHILDREN))]
        while waiting and seen < _MOST_SPLIT:
            waiting.sort(key=lambda one: -one.bytes)
            index, _, retained = waiting.pop(0)
            seen += 1
            if retained * _LEAST_SHARE < least or len(found) == most:
                break
            index = self.innermost(tree, index)
            if self.is_split(index):
                waiting += tree.children(index, _MOST_CHILDREN)
            else:
                owner = self.owner_of(index)
                found.append(Retainer(self.object(owner), tree.sum_retained(owner)))
        return sorted(found, key=lambda one: (-one.retained.bytes, one.object.address))

    def innermost(self, tree: Dominators, index: int) -> int:
        """Return the last of a chain of objects, each of which retains nearly all that the previous
        one retains."""
        for _ in range(MOST_LEVELS):
            inner = next(iter(tree.children(index, 1)), None)
            if inner is None or inner.bytes < NEARLY_ALL * tree.sum_retained(index).bytes:
                break
            if self.type_of(inner.block) == self.type_of(index):  # a list
                break
            index = inner.block
        return index

    def root_of(self, index: int) -> Optional[ObjectWord]:
        """Return the root at which a shortest path to an object begins; None if there is none.
        References to the start of an object, and references in memory, are preferred."""
        path = self.path(index)
        if not path:
            return None
        low, high = self.extent(path[0])
        best: Optional[ObjectWord] = None
        for word in self.roots_to(self.blocks.address(path[0]), high):
            if word.value == low and word.address:
                return word
            if best is None or (word.value != low, not word.address) < (best.value != low, not best.address):
                best = word
        return best

    def describe_root(self, index: int) -> str:
        """Return a phrase for the root at which a shortest path to an object begins."""
        root = self.root_of(index)
        return root.describe_root() if root is not None else NO_ROOT

    def example(self, type_name: str) -> Optional[int]:
        """Return the address of a live object of a type; None if there is none. The paths to a few
        objects are compared, and an object with the most common path is returned."""
        examples = self._examples(type_name)
        # Goroutines and threads have numbers, which differ for objects with the same path.
        paths = [re.sub(r"\d+", "", self._describe_reach(index)) for index in examples]
        best = max(range(len(paths)), key=lambda at: (paths.count(paths[at]), -at), default=None)
        return self.extent(examples[best])[0] if best is not None else None

    def describe_example(self, address: int) -> str:
        """Return the root of an object and the path from there, or ""."""
        found = self.find(address)
        return self._describe_reach(found.block) if found is not None else ""

    def _describe_reach(self, index: int) -> str:
        return f"{self.describe_root(index)}: {self.describe_path(index)}"

    def _examples(self, type_name: str) -> list[int]:
        """Return a few live objects of a type. Each is in the middle of an equal share of all
        bytes. A path takes time proportional to the size of the heap, so a large heap has only one
        example: the first from the middle of the heap on."""
        types, names = self.labels()
        data, width = types.tobytes(), types.itemsize
        wanted = [array(types.typecode, [number]).tobytes() for number, name in enumerate(names) if name == type_name]
        if len(self.blocks) > _MOST_SAMPLED:
            middle = len(data) // 2 // width * width
            parts = (data[middle:], middle), (data[:middle], 0)
            found = (start + at for part, start in parts for one in wanted for at in occurrences(part, one) if at % width == 0)
            indices = (at // width for at in islice(found, _MOST_TRIED))
            return list(islice(filter(self.is_live, indices), 1))
        places = (at // width for one in wanted for at in occurrences(data, one) if at % width == 0)
        live = list(filter(self.is_live, places))
        ends = list(accumulate(self.blocks.size(index) for index in live))
        middles = ((2 * at + 1) * ends[-1] // (2 * _EXAMPLES) for at in range(_EXAMPLES)) if live else ()
        return list(dict.fromkeys(live[min(bisect_right(ends, middle), len(live) - 1)] for middle in middles))

    def is_live(self, index: int) -> bool:
        """Whether an object is live; False if this is unknown."""
        return self.graph is not None and self.graph.kind(index) in LIVE

    def describe_holder(self, index: int) -> str:
        """Return a phrase for what keeps an object alive: something that the program's author can
        identify, such as a variable, or else the root."""
        return self.describe_root(index)

    def find_joint_retainer(self) -> Optional[JointRetainer]:
        """Return variables of one object that only together retain much memory; None if no object
        has such variables."""
        return None

    def describe_content(self, index: int) -> str:
        """Return a sentence about what an object retains, or ""."""
        return ""

    def describe_path(self, index: int) -> str:
        """Return the types and fields on a shortest path to a live object; see `describe_chain`."""
        return self.describe_chain(self.path(index))

    def describe_chain(self, path: Sequence[int]) -> str:
        """Return the types and fields on a path: "main.Cache.items → []*main.Item"; "" if the path
        is empty. A type is named once for all successive objects, such as the nodes of a list."""
        links = list(zip(path, path[1:]))
        parts = [links] if len(links) <= 2 * MOST_LEVELS else [links[:MOST_LEVELS], links[-MOST_LEVELS:]]
        names: list[str] = []
        for part in parts:
            shown = (f"{self.type_of(one)}{self._show_field(self.link(one, following).name)}" for one, following in part)
            names += [*(["…"] if names else []), *(name for name, _ in groupby(shown))]
        return join_path([*names, *map(self.type_of, path[-1:])], self.plain_types)

    def _show_field(self, name: str) -> str:
        """Return the part of a name that a path shows: fields, but no numbers of elements."""
        return f" {name}" if name.startswith("static ") else name if name.startswith(".") else ""

    def path_remedies(self, path: str) -> Sequence[str]:
        """Return what frees objects that a root reaches by this path in words; () if unknown."""
        return ()

    def retained_by_type(self, group: Callable[[str], str]) -> Optional[dict[str, int]]:
        """Return for each type the bytes of the live objects that its objects retain, themselves
        included; see Dominators.by_label. None if live objects are unknown.

        `group` maps the name of a type to the name of its row."""
        if self.dominators is None:
            return None
        types, names = self.labels()
        numbers: dict[str, int] = {}
        rows = array("I", (numbers.setdefault(group(name), len(numbers)) for name in names))
        return dict(zip(numbers, (total.bytes for total in self.dominators.by_label(types, rows))))
