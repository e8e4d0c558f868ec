"""Find the top retainer: the root that retains most of the memory in use, and the container in it
that retains most of that."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Optional

from findleaks.audit.block_type import is_managed
from findleaks.audit.member_names import is_telling, name_managed_object
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.audit.retained_roots import PART, build_shared_row
from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.retained_tree import TreeBuilder
from findleaks.audit.similar_blocks import UNTYPED
from findleaks.audit.typed_places import name_template
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes
from findleaks.session import Session
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple, replace

DEPTH = 3  # levels of fields examined below a root
DEPTH_MANAGED = 24
"""Levels that are examined below a variable of a managed language. Between an event loop and the
queue of a task are more than ten."""

MOST = 0.5
"""Fraction of the reachable memory, or of the memory that a field's owner retains, that counts as
"most"."""


_ATTRIBUTE = re.compile(r"\.\w+\Z")
_MEMBER = re.compile(r"[\w.]+\.\w+\Z")  # "asyncio.unix_events._UnixSelectorEventLoop._scheduled"
_LARGE_CONTENT = re.compile(r"[\w.]+ of \d[\d,]{4,}\b")  # "list of 20,001"
_COLLECTION = re.compile(r" of \d[\d,]+ at 0x")
"""This matches the name of a block that is a collection of ten elements or more."""
_LOCAL = "local variable "  # prefix of the name of a local variable
MEMBERS = 1 << 23  # retained blocks that are listed at a time; 4 bytes each
LISTED = 0.1  # a group of roots is listed if it retains this fraction of the reachable memory
_MOST_WAYS = 4  # fields that are named, if they retain most of a root's memory only together
_EXAMINED = 1 << 20  # about the most small blocks whose owners are found one by one; 4 µs each
_LARGE = 64 << 10  # bytes of a block that is not small
NAMED = 12  # maximum number of variables and frames of managed languages that are named


def _scramble(index: int) -> int:
    """Return a number that is the same in each run. Blocks of one kind may have indices at equal
    distances, so the indices themselves would select too many or too few of them."""
    return index * 0x9E3779B97F4A7C15 >> 20 & 0xFFFFFFFF


class RootGroup(NamedTuple):
    """Roots that are one variable or function of several threads, or one root. `numbers`: their
    numbers in the tree, the one that retains the most first. `totals`: the sum of what each one
    retains."""

    owners: Sequence[Owner]
    numbers: Sequence[int]
    totals: Totals

    @property
    def retain(self) -> str:
        """The verb after the label."""
        return "retain" if self.is_stack else "retains"

    @property
    def is_stack(self) -> bool:
        """Whether the roots are frames of stacks."""
        return self.owners[0].sort == OwnerSort.STACK

    @property
    def label(self) -> str:
        """The name with the number of threads: "cache (prog, thread-local) of 8 threads"."""
        first, count = self.owners[0], len(self.owners)
        if count == 1:
            return first.label
        if self.is_stack:
            return f"frames of {first.where} on the stacks of {count:,} threads" if first.where else f"the stacks of {count:,} threads"
        return f"{first.name} ({_without_thread(first)}) of {count:,} threads"


def _without_thread(owner: Owner) -> str:
    return owner.where.rpartition(", ")[0]


class TopRetainer(NamedTuple):
    """The root that retains more memory than any other."""

    owner: Owner
    totals: Totals
    reached: Totals
    # The field that retains most of the root's memory; None if no field does
    field: Optional[RetainedNode]
    # Variables and frames of managed languages that retain the most, with the blocks that they
    # retain. Their objects that are not blocks are counted only for the order.
    variables: Sequence[tuple[Owner, Totals]]
    tree: Dominators
    node: int  # number of the root in `tree`
    level: int = 0  # level of `field` below a variable of a managed language
    type: str = ""  # type of the variable, if no container was recognised; see name_template
    # Fields that retain most of the root's memory only together, with their content
    ways: Sequence[str] = ()
    # If no root retains most: the groups of roots that retain the most, and the content of the
    # first root of the first group
    groups: Sequence[RootGroup] = ()

    @property
    def is_most(self) -> bool:
        """Whether the root retains most of the reachable memory."""
        return self.totals.bytes >= MOST * self.reached.bytes

    def members(self) -> Iterator[array[int]]:
        """Yield the indices ("I") of the blocks that it retains, in parts."""
        for first in range(0, self.totals.blocks, MEMBERS):
            yield self.tree.members(self.node, first, MEMBERS)

    def object_types(self, session: Session) -> list[tuple[str, Totals]]:
        """Return the types of the managed objects that the root retains, those with the most bytes
        first. The bytes of a type include blocks that are not objects, if only one object of the
        type retains them: the items of a list, the characters of a string.

        If there are many such blocks, the owners of only a part of the small blocks are searched
        for, and the bytes of the other small blocks are distributed in proportion. The list is
        empty if objects of the runtime are not blocks."""
        known = session.object_types
        if known is None:
            return []
        # The objects, and the bytes, by type
        objects: Counter[int] = Counter()
        held: Counter[int] = Counter()
        without = frozenset([NO_OBJECT, *known.parts])
        owners: dict[int, int] = {}
        # The bytes of the small blocks without an object that were examined, by type of the owner.
        small: Counter[int] = Counter()
        all_small, part = 0, 1 + self.totals.blocks // _EXAMINED
        for indices in self.members():
            types = array("Q", map(known.types.__getitem__, indices))
            sizes = array("Q", session.directory.blocks.columns_of(indices).size)
            counts = dict(zip(*session.engine.sum_by_value(types, array("Q"))))
            for number, total in zip(*session.engine.sum_by_value(types, sizes)):
                if number not in without:
                    objects[number] += counts[number]
                    held[number] += total
            if known.are_native:
                continue
            parts = ((index, size) for index, number, size in zip(indices, types, sizes) if number in without)
            for index, size in interruptible(session.target, parts, 4096):
                all_small += size if size < _LARGE else 0
                if size >= _LARGE or _scramble(index) % part == 0:
                    number = self._type_of_owner(index, known, without, owners)
                    (small if size < _LARGE else held)[number] += size
        examined = sum(small.values())
        for number, total in small.items():
            held[number] += total * all_small // max(examined, 1)
        held.pop(NO_OBJECT, None)
        order = sorted(held, key=lambda number: (-held[number], number))
        return [(known.names[number], Totals(objects[number], held[number])) for number in order]

    def _type_of_owner(self, index: int, known: ObjectTypes, without: frozenset[int], owners: dict[int, int]) -> int:
        """Return the type of the nearest object that dominates a block; NO_OBJECT if there is none.
        `index`: a block that is not an object. `without`: the types of such blocks. `owners`:
        earlier results for such blocks, by index; results are added."""
        passed, number = list[int](), NO_OBJECT
        while number == NO_OBJECT:
            passed.append(index)
            above = self.tree.idom(index)
            if above is None or above < 0:
                break
            index = above
            number = known.types[index] if known.types[index] not in without else owners.get(index, NO_OBJECT)
            if index in owners:
                break
        owners.update(dict.fromkeys(passed[1:], number))  # the first seldom dominates a block
        return number

    def most_common_size(self) -> tuple[int, int]:
        """Return a usable size and the number of retained blocks with this size: the size whose
        blocks have the most bytes together."""
        return next(iter(self.tree.sizes(self.node, 1)), (0, 0))

    @property
    def length(self) -> int:
        """Number of elements in the container; 0 if none was recognised."""
        contents = self.field.contents if self.field is not None else None
        return contents.container.length if contents is not None else 0


def find_top_retainer(session: Session) -> Optional[TopRetainer]:
    """Return the root that retains the most; None if there is no root."""
    reader, named, tree = build_owner_tree(session)
    totals = tree.by_root()
    most = max(range(len(named.all)), key=lambda number: totals[number].bytes, default=-1)
    reached = tree.total()
    if most < 0:
        return None
    programs = (number for number, owner in enumerate(named.all) if owner.sort == OwnerSort.MANAGED or owner.is_managed_frame)
    order = sorted(programs, key=lambda number: (-totals[number].bytes - named.all[number].objects.bytes, number))[:NAMED]
    variables = [(named.all[number], totals[number]) for number in order]
    found = TopRetainer(named.all[most], totals[most], reached, None, variables, tree, root_node(most))
    if not found.is_most:
        groups = _group_roots(named.all, totals, LISTED * reached.bytes)
        first = (
            TreeBuilder(session, reader, tree, DEPTH, 3).of_root(groups[0].owners[0], root_node(groups[0].numbers[0])) if groups else None
        )
        return found._replace(groups=groups, field=_deepest(first) if first is not None else None)
    managed = found.owner.sort == OwnerSort.MANAGED
    # Few levels of a managed object have a name. To save time, only rows with most of the memory
    # are built.
    builder = TreeBuilder(session, reader, tree, DEPTH_MANAGED, 3, MOST) if managed else TreeBuilder(session, reader, tree, DEPTH, 3)
    row = builder.of_root(found.owner, root_node(most))
    field, level = _deepest_named(row, partial(_name_with_function, session)) if managed else (_deepest(row), 0)
    ways: Sequence[str] = ()
    if field is None or found.owner.members:
        ways = _list_ways(TreeBuilder(session, reader, tree, 1, _MOST_WAYS + 1), found.owner, root_node(most))
    recognised = field is not None and field.contents is not None and field.contents.container.unit != "pointers"
    return found._replace(field=field, level=level, ways=ways, type="" if recognised else name_template(session, found.owner))


def find_variable_field(session: Session, owner: Owner) -> Optional[RetainedNode]:
    """Return the deepest field below a variable of a managed language that has a name and retains
    most of the variable's memory. Return None if there is none, or if the variable itself is a
    collection."""
    reader, named, tree = build_owner_tree(session)
    number = next((number for number, one in enumerate(named.all) if one is owner), -1)
    if number < 0 or owner.length is not None or owner.sort != OwnerSort.MANAGED or session.object_types is None:
        return None
    row = TreeBuilder(session, reader, tree, DEPTH_MANAGED, 3, MOST).of_root(owner, root_node(number))
    field, level = _deepest_named(row, partial(_name_with_function, session))
    return field if level and field is not None and field.what else None


def _group_roots(owners: Sequence[Owner], totals: Sequence[Totals], least: float) -> list[RootGroup]:
    """Return the groups of roots that retain at least `least` bytes, the largest first. A
    thread-local variable, or the frames of a function, of all threads are one group."""
    members: dict[tuple[object, ...], list[int]] = {}
    for number, (owner, total) in enumerate(zip(owners, totals)):
        if not total.bytes or owner.managed:
            continue
        key: tuple[object, ...] = (number,)
        if owner.sort == OwnerSort.THREAD_LOCAL:
            key = (owner.sort, owner.name, _without_thread(owner))
        elif owner.sort == OwnerSort.STACK and owner.thread:
            key = (owner.sort, owner.where)
        members.setdefault(key, []).append(number)
    found = []
    for numbers in members.values():
        numbers.sort(key=lambda number: (-totals[number].bytes, number))
        found.append(RootGroup([owners[number] for number in numbers], numbers, Totals.sum_of(totals[number] for number in numbers)))
    return sorted((one for one in found if one.totals.bytes >= least), key=lambda one: -one.totals.bytes)


class SharedPart(NamedTuple):
    """The largest part of the memory that several roots retain together."""

    together: Totals  # all memory that several roots retain together
    row: RetainedNode
    is_one_block: bool  # whether a single block retains the part
    # The deepest field below a managed object that retains most of the part; None if there is none
    field: Optional[RetainedNode] = None


def find_shared_part(session: Session, least: float) -> Optional[SharedPart]:
    """Return the largest part of the memory that several roots retain together. Returns None if
    they retain less than the fraction `least` of the reachable memory, or if no part is much larger
    than the others."""
    reader, named, tree = build_owner_tree(session)
    totals = tree.sum_retained(SHARED)
    if totals.bytes < least * tree.total().bytes:
        return None
    shared = build_shared_row(TreeBuilder(session, reader, tree, 1, NAMED), named, NAMED, tree.spread(SHARED, NAMED))
    if not shared.fields or shared.fields[0].totals.bytes < PART * totals.bytes:
        return None
    part = shared.fields[0]
    content = _largest_part(part)
    if not part.what and content is not None and content.name.endswith(f" at {content.address:#x}"):
        part = replace(part, what=content.name)  # for example the list in a queue
    index = reader.blocks.find(part.address)
    is_one_block = index >= 0 and tree.sum_retained(index) == part.totals
    field = None
    if is_one_block and is_managed(session, index):
        row = TreeBuilder(session, reader, tree, DEPTH_MANAGED, 3, MOST).of_block(index)
        field, _ = _deepest_named(row, partial(_name_with_function, session))
    return SharedPart(totals, part, is_one_block, field if field is not None and field.what else None)


def _deepest_named(row: RetainedNode, name_field: Callable[[RetainedNode], str]) -> tuple[Optional[RetainedNode], int]:
    """Return the deepest field that retains most of the memory and whose name the program's author
    knows, and the level of this field. If there is no such field, return a large collection. The
    returned name begins with the name of the field above: "local variable q → ._queue", or with
    that of a local variable two fields above.
    `name_field`: function that returns the name of a field."""
    found, level = row if row.what else None, 0
    holders: list[str] = []  # names of the fields above
    owner = ""  # type of the last object above
    for depth in count(1):
        below = _largest_part(row)
        if below is None:
            break
        row, name = below, below.place
        if below.sort == "block" and ": " in below.name:  # "local variable q: Queue at 0x…"
            name = below.name.partition(": ")[0]
        if (is_telling(name) or _MEMBER.match(name)) and not name.startswith(UNTYPED):
            own = name_field(row)
            # "local variable s: Service at 0x…" and ".queue"
            own += f" → {below.what}" if below.sort == "block" and _ATTRIBUTE.match(below.what) else ""
            holders.append(f"{owner}{own}" if owner and own.startswith(".") and not holders else own)
            shown = holders[-3:] if holders[-3:][0].startswith(_LOCAL) else holders[-2:]
            found, level = replace(row, name=" → ".join(shown)), depth
        elif below.sort == "block" and _ATTRIBUTE.match(below.what):
            # "__main__.Broker at 0x…" and ".queue"
            holders.append(below.name.partition(" at 0x")[0] + below.what)
        elif below.sort == "block" and not level and _COLLECTION.search(below.name):
            found, level = below, depth
        elif below.sort == "field" and not level and _LARGE_CONTENT.match(below.what):
            # "block of 80 B, offset 0x28: collections.deque of 19,999": the names of members are
            # unknown.
            found, level = replace(row, name=f"Below {owner}" if owner else row.name), depth
        if below.sort == "block" and " at 0x" in below.name and not below.name.startswith(UNTYPED):
            owner = below.name.partition(" at 0x")[0].rpartition(": ")[2]
    return found, level


def _name_with_function(session: Session, row: RetainedNode) -> str:
    """Return the name of a field. The name of a local variable is followed by the object that
    contains the variable: "local variable q of coroutine consumer"."""
    index = session.directory.blocks.find(row.address) if row.sort == "field" and row.name.startswith(_LOCAL) else -1
    owner = name_managed_object(session, index) if index >= 0 else ""
    return f"{row.name} of {owner}" if owner else row.name


def _list_ways(builder: TreeBuilder, owner: Owner, node: int) -> Sequence[str]:
    """Return the fields of a root that retain most of its memory only together, each with its
    content. Return () if the root has further fields, or a field without a name that the program's
    author knows."""
    row = builder.of_root(owner, node)
    fields = [(child.place, child.what.partition(", and ")[0]) for child in row.fields]
    if row.shared.bytes < MOST * row.totals.bytes or row.left or not 1 < len(fields) <= _MOST_WAYS:
        return ()
    names = {one.name for one in owner.members}
    begins = tuple(f"{name}{mark}" for name in names for mark in ".+[")
    known = [name in names or name.startswith(begins) or is_telling(name) for name, _ in fields]
    return [f"{name} ({what})" for name, what in fields] if all(known) else ()


def _largest_part(row: RetainedNode) -> Optional[RetainedNode]:
    """Return the field, or the shared block, that retains most of the memory of this row."""
    largest_first = sorted([*row.fields, *row.shared_rows], key=lambda child: -child.totals.bytes)
    return next((child for child in largest_first if child.totals.bytes >= MOST * row.totals.bytes), None)


def _deepest(row: RetainedNode) -> Optional[RetainedNode]:
    """Return the deepest field that retains most of its owner: a container, a field of a block, or
    a block that several fields refer to."""
    found = row if row.contents is not None else None
    for _ in range(DEPTH + 1):
        below = _largest_part(row)
        if below is None:
            break
        found = row = below
        if row.contents is not None:
            break
    return found
