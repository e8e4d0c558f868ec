"""Find the types of objects in pools. A pool places objects one after another in its blocks, so
neither the size nor the start of an object is known: only the pointers to it.

Each certain pointer into the memory of a pool determines the type of the object at this place, if
the words there fit the type. The object's own pointers are followed in turn. A stale pointer may
refer to memory that now has other objects. Therefore objects that overlap, without one being a
member of the other, are left out, and so are the objects that were found through them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.debuginfo.type_table import Kind
from findleaks.engine.type_spread import DISPUTED, INFERRED, LEAST_STRONG, POOL_POINTER, ROOT, Feature, Level, Role
from findleaks.target.base import Range
from findleaks.target.ranges import range_at
from findleaks.types.embedding import is_structure
from findleaks.types.path_hints import Found, PathHints
from findleaks.types.references import Sort
from findleaks.types.specs import Spec
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.engine.type_spread import Pointers
    from findleaks.types.slots import SlotTarget
    from findleaks.types.spread import Spreading

MOST_OBJECTS = 1 << 18
"""Maximum number of objects in pools that get a type."""
MOST_CHECKED = 16
"""Maximum number of words of an object that are compared with its type."""
MOST_COMPARED = 64
"""Maximum number of elements of an object whose pointers are examined."""
MOST_OWNERS = 1 << 16
"""Maximum number of blocks of a type to which hints with a path are applied."""
MOST_ELEMENTS = 1 << 20
"""Maximum number of elements of objects in pools to which hints with a path are applied. The size
of the pools is no limit, because arrays at wrong addresses may overlap."""
_LOOK = 256
"""Steps between two checks for the user's interrupt."""
_BYTES = {Feature.ONE_BYTE: 1, Feature.TWO_BYTES: 2, Feature.FOUR_BYTES: 4, Feature.TARGET_BYTE: 1, Feature.TARGET_BYTES: 4}


class PoolObject(NamedTuple):
    """`size` bytes at an address in a pool: a value of a type, or an array of values."""

    address: int
    size: int
    type: int
    many: bool = False

    @property
    def end(self) -> int:
        """The address after the object."""
        return self.address + self.size


def _by_place(one: PoolObject) -> tuple[int, int, int, bool]:
    """Order objects by address, the larger ones first."""
    return one.address, -one.size, one.type, one.many


class ObjectTable:
    """Typed objects in pools, by address. They do not overlap."""

    def __init__(self, objects: Sequence[PoolObject] = ()) -> None:
        self._objects = objects
        self._starts = array("Q", (one.address for one in objects))

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[PoolObject]:
        return iter(self._objects)

    def at(self, address: int) -> Optional[PoolObject]:
        """Return the object that contains an address; None if there is none."""
        row = bisect_right(self._starts, address) - 1
        return self._objects[row] if row >= 0 and address < self._objects[row].end else None


class PoolObjects:
    """Finds the objects in pools while types spread, and applies hints with a path to all
    objects."""

    def __init__(self, search: Spreading, mapped: Sequence[Range], code: Sequence[Range]) -> None:
        """`mapped` and `code`: all readable, and all executable memory."""
        self._search, self._mapped, self._code = search, mapped, code
        self._memory: Sequence[Range] = ()
        self._seen = set[tuple[int, int]]()  # Values and references.
        self._owners: dict[PoolObject, int] = {}  # The owners of the pointers to objects.
        self._at: dict[int, list[PoolObject]] = {}  # By address.
        self._by_root: dict[int, PoolObject] = {}  # By number of root memory.
        self._new: list[PoolObject] = []
        self._checks: dict[int, Sequence[tuple[int, bool]]] = {}
        self._members: dict[tuple[int, int, int], bool] = {}  # Results of `_has`.
        self._visited = set[int]()  # Blocks to which hints with a path were applied.
        self._variables: list[tuple[int, int]] = []
        self._strong: dict[PoolObject, int] = {}  # Results of `_count_strong`.
        self._elements = MOST_ELEMENTS  # To which hints may still be applied.
        self._steps = 0

    def set_memory(self, blocks: Sequence[int], memory: Sequence[Range]) -> None:
        """Set the blocks of pools, by index, and the memory that is in use in them (sorted,
        disjoint)."""
        self._memory = memory
        self._search.spread.set_pools(array("I", blocks))

    def _poll(self) -> None:
        """Check whether the user asked to stop, in one of _LOOK calls. Raises Interrupted."""
        self._steps += 1
        if self._steps % _LOOK == 0:
            self._search.poll()

    @property
    def _paths(self) -> Optional[PathHints]:
        slots = self._search.rules.slots
        return slots.paths if slots is not None and slots.paths.hints else None

    def add_variables(self, addresses: Sequence[int], types: Sequence[int]) -> None:
        """Add variables, to which hints with a path are applied."""
        paths, bare = self._paths, self._search.table.bare
        if paths is not None:
            self._variables += [(address, bare(number)) for address, number in zip(addresses, types) if bare(number) in paths.hints]

    def collect(self) -> bool:
        """Find the objects that the noted pointers refer to, and add them as typed memory. Return
        whether there are new ones."""
        claimed, rows = self._search.spread.claimed, self._search.spread.take_pool_pointers()
        for at in range(0, len(rows), POOL_POINTER):
            self._poll()
            owner, place, value, reference = rows[at : at + POOL_POINTER]
            if (value, reference) not in self._seen:
                self._seen.add((value, reference))
                number = self._find_type(reference, owner, place, value)
                if number:
                    self._add(value, number, 1, False, owner)
        if not self._new:
            self._apply_to_others()
        return self._add_roots() or self._search.spread.claimed != claimed

    def _find_type(self, number: int, owner: int, place: int, value: int) -> int:
        """Return the type of the object that a pointer refers to; 0 if unknown."""
        layouts, table = self._search.layouts, self._search.table
        of = layouts.references[number]
        if of.sort == Sort.POINTER:
            pointee = of.pointees[0]
            if of.used or of.counted:
                return 0  # The elements in use are not known here.
            is_pointer = table.kinds[pointee] == Kind.POINTER and is_structure(table, table.bare(table.targets[pointee]))
            return pointee if is_pointer or is_structure(table, pointee) else 0
        slots = self._search.rules.slots
        for target in slots.targets(of.owner, of.offset) if slots is not None else ():
            if self._applies(target, owner, place, value):
                return target.types[0].type
        return 0

    def _applies(self, target: SlotTarget, owner: int, place: int, value: int) -> bool:
        """Whether the condition of a hint is true for a pointer."""
        sort, distance = target.feature >> 8, (target.feature & 0xFF) - 128
        if not target.keys:
            return True
        if sort == Feature.OWNER_WORD:
            return self._search.spread.feature(target.feature, array("Q", (owner, place, 0)))[0] in target.keys
        start = value if sort in (Feature.TARGET_BYTE, Feature.TARGET_BYTES) else place
        return self._search.heap.number(start + distance, _BYTES.get(Feature(sort), self._search.table.word)) in target.keys

    def _add(self, address: int, number: int, count: int, many: bool, owner: int) -> None:
        """Add an object, unless its content contradicts the type."""
        table = self._search.table
        number = table.bare(number)
        made = PoolObject(address, table.size_of(number) * count, number, many)
        known = self._at.get(address, ())
        is_known = any(one.size >= made.size and self._has(one.type, 0, number) for one in known)
        if not is_known and len(self._owners) < MOST_OBJECTS and self._fits(made):
            self._at.setdefault(address, []).append(made)
            self._owners[made] = owner
            self._new.append(made)

    def _has(self, outer: int, offset: int, inner: int) -> bool:
        """Whether a type has another type at an offset (Embedding.has)."""
        key = outer, offset, inner
        if key not in self._members:
            self._members[key] = self._search.embedding.has(*key)
        return self._members[key]

    def _fits(self, one: PoolObject) -> bool:
        """Whether an object is in the used memory of a pool, and its first pointers are null, refer
        to memory, or are (void *)-1, which some programs use for "not set"."""
        table, heap = self._search.table, self._search.heap
        memory = range_at(self._memory, one.address)
        if memory is None or one.end > memory.end or one.address % table.word or not one.size:
            return False
        if one.type not in self._checks:
            shape = self._search.layouts.shape(Spec(one.type))
            leaves = [leaf for part in shape[:1] for leaf in part.leaves if not part.start and self._is_checked(leaf.role, leaf.reference)]
            self._checks[one.type] = [(leaf.offset, leaf.role == Role.CODE) for leaf in leaves[:MOST_CHECKED]]
        data, order = heap.bytes(one.address, table.size_of(one.type)), heap.arch.byteorder
        unset = (1 << 8 * table.word) - 1
        for offset, is_code in self._checks[one.type]:
            value = int.from_bytes(data[offset : offset + table.word], order)
            if value and value != unset and range_at(self._code if is_code else self._mapped, value) is None:
                return False
        return True

    def _is_checked(self, role: Role, reference: int) -> bool:
        return role == Role.CODE or (role == Role.REFERENCE and self._search.layouts.references[reference].sort == Sort.POINTER)

    def _add_roots(self) -> bool:
        """Add the new objects as typed memory, and apply hints with a path to them."""
        added = False
        while self._new:
            new, self._new, added = self._new, [], True
            layouts = self._search.layouts
            columns = array("Q"), array("Q"), array("I")
            for one in new:
                for column, value in zip(columns, (one.address, one.size, layouts.number(Spec(one.type, one.many)))):
                    column.append(value)
            first = self._search.add_roots_of_layouts(*columns)
            self._by_root.update((first + at, one) for at, one in enumerate(new))
            for at, one in enumerate(new):
                size = self._search.table.size_of(one.type)
                if self._paths is not None and one.type in self._paths.hints:
                    starts = range(one.address, one.end, size)[: self._elements]
                    self._elements -= len(starts)
                    for start in starts:
                        self._apply_paths(one.type, start, ROOT + first + at)
        return added

    def are_doubtful(self, found: Pointers) -> bool:
        """Whether these pointers are in objects of pools, and their blocks are much larger than the
        types of the pointers say. An object may keep a pointer to a pool that was freed, and whose
        memory is a block of another type now."""
        owners = found.untyped[0::3]
        if not owners or not all(owner - ROOT in self._by_root for owner in owners):
            return False
        rules = self._search.rules
        return all(rules.has_rest(one.spec, found.size) for one in rules.candidates(found.reference, found.offset, found.size))

    def _apply_to_others(self) -> None:
        """Apply hints with a path to variables, and to blocks with a certain type."""
        paths, search = self._paths, self._search
        if paths is None:
            return
        for address, number in self._variables:
            self._apply_paths(number, address, ROOT)
        self._variables.clear()
        for number in paths.hints:
            for many in (False, True):
                blocks = search.spread.with_layout(search.layouts.number(Spec(number, many)), MOST_OWNERS)
                for block in blocks:
                    if block not in self._visited and not search.heap.claims[block] & INFERRED:
                        self._visited.add(block)
                        start, own = search.heap.blocks.address(block), search.table.size_of(number)
                        end = start + search.heap.blocks.size(block) if many else start + own
                        for at in range(start, end - own + 1, own):
                            self._apply_paths(number, at, block)

    def _apply_paths(self, number: int, address: int, owner: int) -> None:
        """Add what hints with a path say about the object of a type at an address."""
        self._poll()
        for one in self._paths.apply(number, address, self._search.heap.number) if self._paths is not None else ():
            if range_at(self._memory, one.address) is not None:
                self._add(one.address, one.type, one.number, one.is_array, owner)
            else:
                self._claim(one, owner)

    def _claim(self, one: Found, owner: int) -> None:
        """Give a hinted type to a block that is not one of a pool."""
        place, table = self._search.heap.place(one.address), self._search.table
        if place is not None and not place.offset and table.size_of(one.type) * one.number <= place.size:
            number = self._search.layouts.number(Spec(one.type, one.is_array))
            self._search.spread.seed(place.block, number, Level.HINT, False, owner)

    def finish(self) -> ObjectTable:
        """Return the objects that nothing contradicts."""
        wrong = set(self._find_overlaps())
        for one, owner in self._owners.items():  # An owner comes before what it refers to.
            if self._search.heap.claims[owner] & DISPUTED if owner < ROOT else self._by_root.get(owner - ROOT) in wrong:
                wrong.add(one)
        found: list[PoolObject] = []
        for one in sorted((one for one in self._owners if one not in wrong), key=_by_place):
            if not found or one.address >= found[-1].end:
                found.append(one)
        return ObjectTable(found)

    def _find_overlaps(self) -> Iterator[PoolObject]:
        """Yield objects that overlap, although none is a member of the other. If the pointers of
        only one of them refer to objects of the expected types, the other one is wrong; else both
        are."""
        table = self._search.table
        outer: Optional[PoolObject] = None
        for one in sorted(self._owners, key=_by_place):
            self._poll()
            if outer is None or one.address >= outer.end:
                outer = one
                continue
            offset = (one.address - outer.address) % table.size_of(outer.type)
            if one.end <= outer.end and self._has(outer.type, offset, one.type):
                continue
            strong = self._count_strong(outer), self._count_strong(one)
            is_outer_wrong = strong[0] == 0 or strong[1] >= LEAST_STRONG
            is_one_wrong = strong[1] == 0 or strong[0] >= LEAST_STRONG
            if is_outer_wrong or not is_one_wrong:
                yield outer
            if is_one_wrong or not is_outer_wrong:
                yield one
            outer = one if is_outer_wrong and (one.end > outer.end or not is_one_wrong) else outer

    def _count_strong(self, one: PoolObject) -> int:
        """Count the pointers in an object that refer to objects of the expected type."""
        if one in self._strong:
            return self._strong[one]
        layouts, heap, found = self._search.layouts, self._search.heap, 0
        for part in layouts.shape(Spec(one.type, one.many)):
            count = min(max(one.size - part.start, 0) // part.stride, part.number or MOST_COMPARED, MOST_COMPARED)
            for at in range(count):
                for offset, of in layouts.references_of(part):
                    value = heap.number(one.address + part.start + at * part.stride + offset, self._search.table.word)
                    found += bool(value) and of.sort == Sort.POINTER and self._has_type(value, of.pointees[0])
        self._strong[one] = found
        return found

    def _has_type(self, address: int, number: int) -> bool:
        """Whether an object of a type, or one that begins with it, starts at an address."""
        if address in self._at:
            return any(self._has(one.type, 0, number) for one in self._at[address])
        place = self._search.heap.place(address)
        layout = self._search.heap.layout(place.block) if place is not None and not place.offset else 0
        return bool(layout) and self._has(self._search.layouts.specs[layout].type, 0, number)
