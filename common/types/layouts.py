"""Make layouts of types. A layout describes which words of a type are pointers, and what each of
them refers to."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Optional

from findleaks.debuginfo.type_table import FLOAT, UNKNOWN, VOID, Field, FieldKind, Flag, Kind, TypeTable
from findleaks.engine.type_spread import Feature, Role, TypeSpread
from findleaks.engine.type_spread import Flag as ReferenceFlag
from findleaks.types.address_numbers import find_parent_word, may_be_address
from findleaks.types.alternatives import find_alternatives
from findleaks.types.buffers import DANGLING, find_array_flags, find_buffer, find_capacity
from findleaks.types.embedding import STRUCTURES, Embedding
from findleaks.types.erasure import find_erased
from findleaks.types.flexible import find_tail
from findleaks.types.nodes import find_container_node, is_node
from findleaks.types.references import Reference, Sort
from findleaks.types.specs import Packed, Spec
from findleaks.types.trait_objects import TRAIT_OBJECT
from findleaks.value_classes import NamedTuple

MOST_LEAVES = 2048  # Words of a type that are described one by one; larger arrays become groups.
INLINE = 64  # Elements of an array member that are described one by one.
DEEPEST = 32
_TAGS = {1: Feature.ONE_BYTE, 4: Feature.FOUR_BYTES, 8: Feature.EIGHT_BYTES}  # By size.

_NONE: frozenset[int] = frozenset()


class Leaf(NamedTuple):
    """A word of a type. `reference` is the number of its reference if the role is REFERENCE.
    `capacity`: if the word is the capacity of a buffer, the result of describe_capacity; else 0."""

    offset: int
    role: Role
    reference: int = 0
    capacity: int = 0


class Elements(NamedTuple):
    """Equal elements of `stride` bytes from `start` on. `number` is how many there are; with 0,
    they extend to the end of the block."""

    start: int
    stride: int
    number: int
    leaves: Sequence[Leaf]


class Layouts:
    """Layouts of the types of one table, and their numbers in the engine."""

    def __init__(self, table: TypeTable, embedding: Embedding, spread: TypeSpread, big_endian: bool) -> None:
        self.table, self.embedding, self.big_endian = table, embedding, big_endian
        self._spread = spread
        self.references: list[Reference] = []
        self._reference_numbers: dict[Reference, int] = {}
        self._shapes: dict[Spec, Sequence[Elements]] = {}
        self._numbers: dict[Spec, int] = {}
        self._pointees: dict[int, frozenset[int]] = {}
        self._tails: dict[int, Optional[tuple[int, int]]] = {}
        self.definitions: dict[int, int] = {}
        """The types that hint files give for types that debug information only declares."""
        self.hinted: set[tuple[int, int]] = set()
        """The members that hint files describe, as (struct, offset)."""
        self.specs: list[Spec] = [Spec(UNKNOWN)]
        """By the engine's numbers."""

    def number(self, spec: Spec) -> int:
        """Return the engine's number of this layout."""
        if spec not in self._numbers:
            groups: list[int] = []
            slots: list[int] = []
            checks: list[int] = []
            for one in self.shape(spec):
                first, first_check = len(slots) // 2, len(checks) // 2
                for leaf in one.leaves:
                    if leaf.role == Role.REFERENCE:
                        slots += (leaf.offset, leaf.reference)
                    else:
                        checks += (leaf.offset, leaf.role + leaf.capacity)
                groups += (one.start, one.stride, one.number, first, len(slots) // 2, first_check, len(checks) // 2)
            self._numbers[spec] = self._spread.add_layout(groups, slots, checks)
            self.specs.append(spec)
        return self._numbers[spec]

    def shape(self, spec: Spec) -> Sequence[Elements]:
        """Return the groups of words of a layout."""
        if spec not in self._shapes:
            self._shapes[spec] = self._make(spec)
        return self._shapes[spec]

    def size_of(self, spec: Spec) -> int:
        """Return the bytes of one value of a layout's type, or of all its parts; 0 if unknown."""
        return max(part.end for part in spec.parts) if spec.parts else self.table.size_of(spec.type)

    def pointees(self, number: int, depth: int = 0) -> frozenset[int]:
        """Return the bare types that the pointers in a type refer to. Functions are left out."""
        table, number = self.table, self.table.bare(number)
        found = self._pointees.get(number)
        if found is None and depth < DEEPEST:
            kind = table.kinds[number]
            if kind == Kind.ARRAY:
                found = self.pointees(table.targets[number], depth + 1)
            elif kind in STRUCTURES:
                rows = range(table.first_field[number], table.first_field[number + 1])
                found = _NONE.union(*(self.pointees(table.field_types[row], depth + 1) for row in rows if not table.field_bits[row]))
                buffer = find_buffer(table, number)
                found |= {buffer.element} if buffer is not None else _NONE
            else:
                pointee = table.bare(table.targets[number]) if kind == Kind.POINTER else UNKNOWN
                found = frozenset((pointee,)) if kind == Kind.POINTER and table.kinds[pointee] != Kind.FUNCTION else _NONE
            self._pointees[number] = found
        return found or _NONE

    def has_pointers(self, number: int) -> bool:
        """Whether a type may have pointers to blocks."""
        return bool(self.pointees(number))

    def count_pointers(self, spec: Spec, pointees: AbstractSet[int]) -> int:
        """Count pointers to one of these types. A pointer in an array counts as MOST_LEAVES."""
        if self.pointees(spec.type).isdisjoint(pointees):
            return 0
        found = 0
        for part in self.shape(spec):
            weight = 1 if part.number == 1 else MOST_LEAVES
            found += weight * sum(not pointees.isdisjoint(one.pointees) for _, one in self.references_of(part))
        return found

    def references_of(self, *parts: Elements) -> list[tuple[int, Reference]]:
        """Return the words that may refer to blocks: offset in an element, and Reference."""
        return [(leaf.offset, self.references[leaf.reference]) for one in parts for leaf in one.leaves if leaf.role == Role.REFERENCE]

    def count_references(self, number: int) -> int:
        """Return how many words of a layout, or of one element of an array, may refer to blocks."""
        return len(self.references_of(*self.shape(self.specs[number])))

    def flexible(self, number: int) -> Optional[tuple[int, int]]:
        """Return offset and element type of the array at the end of a struct that may be longer
        than declared; None if there is none."""
        if number not in self._tails:
            self._tails[number] = find_tail(self.table, number)
        return self._tails[number]

    def _make(self, spec: Spec) -> Sequence[Elements]:
        if spec.parts:
            return [one for part in spec.parts for one in self._make_part(part, spec.node)]
        table, bare = self.table, self.table.bare(spec.type)
        size = table.sizes[bare]
        groups: list[Elements] = []
        leaves: list[Leaf] = []
        if size:
            walk = _Walk(self, leaves, groups, self._node_of(bare) or spec.node, bare)
            walk.type(bare, 0, 0, 0, 0)
        if spec.many:
            return [Elements(0, size, 0, leaves)] if size else []
        tail = self.flexible(bare)
        if tail is not None and table.sizes[tail[1]]:
            inner: list[Leaf] = []
            _Walk(self, inner, [], spec.node, bare).type(tail[1], 0, bare, tail[0], 0)
            leaves[:] = [leaf for leaf in leaves if leaf.offset < tail[0]]
            if table.sizes[tail[1]] == 1 and tail[0] % table.word == 0:
                leaves.append(Leaf(tail[0], Role.CHARACTERS))
            groups.append(Elements(tail[0], table.sizes[tail[1]], 0, inner))
        return [Elements(0, size, 1, leaves), *groups] if size else groups

    def _make_part(self, part: Packed, node: int) -> Sequence[Elements]:
        """Return the groups of words of a part. Words after the end of a truncated object are left
        out, and large arrays in objects of an array."""
        groups: list[Elements] = []
        leaves: list[Leaf] = []
        bare = self.table.bare(part.type)
        _Walk(self, leaves, groups, self._node_of(bare) or node, bare).type(bare, 0, 0, 0, 0)
        leaves = [leaf for leaf in leaves if leaf.offset + self.table.word <= part.size and (not part.words or leaf.offset in part.words)]
        inner = [one._replace(start=part.offset + one.start) for one in groups if one.start + one.number * one.stride <= part.size]
        return [Elements(part.offset, part.size, part.number, leaves), *(inner if part.number == 1 and not part.words else ())]

    def _node_of(self, number: int) -> int:
        """Return a node type itself if its base class links nodes of this type."""
        name = self.table.text(self.table.names[number])
        return number if is_node(name) else 0

    def refer(self, reference: Reference) -> int:
        """Return the number of a reference."""
        if reference not in self._reference_numbers:
            self._reference_numbers[reference] = len(self.references)
            self.references.append(reference)
        return self._reference_numbers[reference]


class _Walk:
    """Collects the words of a type."""

    def __init__(self, layouts: Layouts, leaves: list[Leaf], groups: list[Elements], node: int, root: int) -> None:
        """`root`: the type that is described. The words are added to `leaves` and `groups`."""
        self._layouts, self._table = layouts, layouts.table
        self._leaves, self._groups, self._node, self._root = leaves, groups, node, root

    def type(self, number: int, at: int, owner: int, inside: int, depth: int, node: int = 0) -> None:
        """Add the words of a type at offset `at`. `owner` is the innermost named struct around it,
        `inside` the offset in it."""
        table = self._table
        is_address = may_be_address(table, number)
        number = table.bare(number)
        kind = table.kinds[number]
        if depth > DEEPEST or len(self._leaves) >= MOST_LEAVES:
            return
        if kind == Kind.POINTER:
            self._pointer(number, at, owner, inside, node or self._node)
        elif kind == Kind.STRUCT:
            self._struct(number, at, owner, inside, depth, node)
        elif kind == Kind.UNION:
            members = [one for one in table.fields_of(number) if one.kind == FieldKind.MEMBER and not one.bits]
            self._choices(members, number, at, owner, inside, depth, node)
        elif kind == Kind.ARRAY:
            self._array(number, at, owner, inside, depth, node)
        elif kind in (Kind.BASE, Kind.ENUM) and table.sizes[number] in (4, table.word) and not is_address:
            word = at - at % table.word
            role = Role.FLOAT if kind == Kind.BASE and table.counts[number] == FLOAT else Role.PLAIN
            if not self._leaves or self._leaves[-1] not in (Leaf(word, Role.PLAIN), Leaf(word, role)):
                self._leaves.append(Leaf(word, role))

    def _struct(self, number: int, at: int, owner: int, inside: int, depth: int, node: int) -> None:
        table = self._table
        name = table.text(table.names[number])
        if name:
            owner, inside = number, 0
        fields = self._layouts.embedding.fields_of(number)
        parts = table.parts_of(number) if "<" in name else ()
        node = find_container_node(table, parts) or node
        stored = self._layouts.embedding.stored.get(number)
        if stored is not None:
            self.type(stored, at, owner, inside, depth + 1, node)
            return
        library = find_alternatives(table, number, name) if "<" in name else None
        if library is not None:
            self._choices(library.members, number, at, owner, inside, depth, node, library.tag)
            return
        variants = [one for one in fields if one.kind >= FieldKind.VARIANT]
        if variants:
            tag = next((one for one in fields if one.kind == FieldKind.DISCRIMINANT), None)
            self._choices(variants, number, at, owner, inside, depth, node, tag)
        parent = find_parent_word(table, number)
        for one in fields:
            if one.kind <= FieldKind.BASE and not one.bits and one.offset != parent:
                self.type(one.type, at + one.offset, owner, inside + one.offset, depth + 1, node)
        capacity = find_capacity(table, number, name)
        if capacity is not None:
            self._leaves[:] = [leaf for leaf in self._leaves if leaf.offset != at + capacity[0]]
            self._leaves.append(Leaf(at + capacity[0], Role.PLAIN, 0, capacity[1]))
        used = find_array_flags(name)
        if used is not None:
            self._count(at, table.sizes[number], used)
        buffer = find_buffer(table, number) if "<" in name else None
        if buffer is not None:
            place = at + buffer.pointer
            self._leaves[:] = [leaf for leaf in self._leaves if leaf.offset != place]
            self._refer(place, Reference(Sort.POINTER, (buffer.element,), counted=True, is_certain=True, used=buffer.flags))
        elif name.startswith(DANGLING):
            self._allow_numbers(at, table.sizes[number])
        erased = find_erased(table, number, name)
        if erased is not None:
            self._leaves[:] = [leaf for leaf in self._leaves if not 0 <= leaf.offset - at - erased.storage < erased.size]
            feature = Feature.STATIC_WORD << 8 | erased.manager - erased.storage + 128
            self._refer(at + erased.storage, Reference(Sort.ERASED, (VOID,), owner, inside + erased.storage, tag=feature))

    def _allow_numbers(self, at: int, size: int) -> None:
        """Allow the pointers in [at, at + size) to be numbers that refer to no object."""
        for index, leaf in enumerate(self._leaves):
            if at <= leaf.offset < at + size and leaf.role == Role.DATA:
                number = self._layouts.refer(Reference(Sort.DATA, (VOID,)))
                self._leaves[index] = Leaf(leaf.offset, Role.REFERENCE, number)
            elif at <= leaf.offset < at + size and leaf.role == Role.REFERENCE:
                reference = self._layouts.references[leaf.reference]
                if reference.sort == Sort.POINTER:
                    number = self._layouts.refer(reference._replace(used=reference.used | ReferenceFlag.OPTIONAL))
                    self._leaves[index] = leaf._replace(reference=number)

    def _count(self, at: int, size: int, first: int) -> None:
        """Mark the pointers in [at, at + size) as pointers to arrays. `first`: the flags of the
        first pointer that indicate which elements are in use."""
        layouts = self._layouts
        for index, leaf in enumerate(self._leaves):
            if at <= leaf.offset < at + size and leaf.role == Role.REFERENCE:
                reference = layouts.references[leaf.reference]
                if reference.sort == Sort.POINTER:
                    used = first if leaf.offset == at else 0
                    self._leaves[index] = leaf._replace(
                        reference=layouts.refer(reference._replace(counted=True, is_certain=bool(used), used=used))
                    )

    def _array(self, number: int, at: int, owner: int, inside: int, depth: int, node: int) -> None:
        table = self._table
        element, count = table.bare(table.targets[number]), table.counts[number]
        step = table.sizes[element]
        if not step or not count or step % table.word:
            return
        inner: list[Leaf] = []
        _Walk(self._layouts, inner, [], node or self._node, self._root).type(element, 0, owner, inside, depth + 1)
        if not inner:
            return
        if count <= INLINE and count * len(inner) + len(self._leaves) <= MOST_LEAVES:
            for index in range(count):
                self._leaves += [leaf._replace(offset=at + index * step + leaf.offset) for leaf in inner]
        else:
            self._groups.append(Elements(at, step, count, inner))

    def _choices(
        self, members: Sequence[Field], number: int, at: int, owner: int, inside: int, depth: int, node: int, tag: Optional[Field] = None
    ) -> None:
        """Add the words of the members of a union, or of the variants of an enum, of which one is
        valid. `tag` is the discriminant of an enum. If it is in the place of a pointer, and only
        one variant has a pointer there, the word is this pointer or a small number, as in
        Option<Box<T>>."""
        table = self._table
        if table.names[number] and table.kinds[number] == Kind.UNION:
            owner, inside = number, 0
        found: dict[int, list[tuple[Field, Leaf]]] = {}
        for one in members:
            inner: list[Leaf] = []
            walk = _Walk(self._layouts, inner, [], node or self._node, self._root)
            walk.type(one.type, one.offset, owner, inside + one.offset, depth + 1)
            for leaf in inner:
                found.setdefault(leaf.offset, []).append((one, leaf))
        for offset, words in found.items():
            if len(words) == len(members) and len({leaf[1:] for _, leaf in words}) == 1:
                self._leaves.append(words[0][1]._replace(offset=at + offset))
                continue
            references = [(one, self._layouts.references[leaf.reference]) for one, leaf in words if leaf.role == Role.REFERENCE]
            only = references[0][1] if len(references) == 1 else None
            if tag is not None and offset == tag.offset and only is not None and only.sort in (Sort.POINTER, Sort.TRAIT_OBJECT):
                self._refer(at + offset, only._replace(used=only.used | ReferenceFlag.OPTIONAL))
            elif references:
                # If the current variant does not have this word, the word is stale.
                is_unset = tag is not None and len(words) < len(members)
                is_object = any(reference.sort == Sort.TRAIT_OBJECT for _, reference in references)
                every = {one for _, reference in references for one in reference.pointees}
                pointees = tuple(sorted(every | {VOID} if is_unset or is_object else every))
                is_any = tag is None and any(reference.sort == Sort.ANY or reference.may_be_any for _, reference in references)
                made = Reference(
                    Sort.CHOICE, pointees, owner, inside + offset, node or self._node, may_have_vtable=is_object, may_be_any=is_any
                )
                if tag is not None:
                    made = self._select(made, tag, offset, references, members)
                self._leaves.append(Leaf(at + offset, Role.REFERENCE, self._layouts.refer(made)))

    def _select(
        self, made: Reference, tag: Field, offset: int, references: Sequence[tuple[Field, Reference]], members: Sequence[Field]
    ) -> Reference:
        """Return the reference of a word of an enum with the pointee for each value of the
        discriminant, if these are known. `references`: those of `members` with a pointer here."""
        size, distance = self._table.size_of(tag.type), tag.offset - offset
        is_plain = all(reference.sort == Sort.POINTER for _, reference in references)
        if not is_plain or size not in _TAGS or abs(distance) >= 128 or all(one.kind != FieldKind.VARIANT for one, _ in references):
            return made
        used = {reference.used for _, reference in references if reference.counted and reference.used}
        # The word has only one set of flags. Without flags, old elements would be followed.
        known = {one: self._layouts.refer(reference) for one, reference in references if len(used) < 2 or reference.used not in used}
        cases = tuple((one.value if one.kind == FieldKind.VARIANT else -1, known.get(one, -1)) for one in members)
        return made._replace(tag=_TAGS[size] << 8 | distance + 128, cases=cases, used=used.pop() if len(used) == 1 else 0)

    def _pointer(self, number: int, at: int, owner: int, inside: int, node: int) -> None:
        table = self._table
        pointee = table.bare(table.targets[number])
        while table.kinds[pointee] == Kind.ARRAY:
            pointee = table.bare(table.targets[pointee])
        pointee = self._layouts.definitions.get(pointee, pointee)
        kind = table.kinds[pointee]
        if kind == Kind.FUNCTION:
            self._leaves.append(Leaf(at, Role.CODE))
        elif kind == Kind.STRUCT and not table.sizes[pointee] and table.text(table.names[pointee]).startswith(TRAIT_OBJECT):
            self._refer(at, Reference(Sort.TRAIT_OBJECT, ()))
        elif kind in (Kind.VOID, Kind.UNKNOWN):
            self._refer(at, Reference(Sort.ANY, (VOID,), owner, inside, node))
        elif kind in STRUCTURES and (table.sizes[pointee] or table.flags[pointee] & Flag.DECLARATION):
            if node and node != pointee and self._layouts.embedding.has(node, 0, pointee):
                pointee = node
            whole = self._root if self._root == pointee or self._layouts.embedding.contains(self._root, pointee) else 0
            self._refer(at, Reference(Sort.POINTER, (pointee,), whole, 0, node if pointee == node else 0))
        elif kind == Kind.POINTER:
            self._refer(at, Reference(Sort.POINTER, (pointee,), 0, 0, node))
        elif (owner, inside) in self._layouts.hinted:
            self._refer(at, Reference(Sort.DATA, (VOID,), owner, inside))
        else:
            self._leaves.append(Leaf(at, Role.DATA))

    def _refer(self, at: int, reference: Reference) -> None:
        self._leaves.append(Leaf(at, Role.REFERENCE, self._layouts.refer(reference)))
