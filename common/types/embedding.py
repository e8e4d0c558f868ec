"""Find the types that contain a type, and the offsets at which they contain it. With this, the type
of a whole structure is found from a pointer to its member."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from findleaks.debuginfo.type_table import UNKNOWN, Field, FieldKind, Flag, Kind, PartKind, TypeTable
from findleaks.types.shared_prefixes import SharedPrefixes
from findleaks.types.trait_objects import find_vtables

STRUCTURES = (Kind.STRUCT, Kind.UNION)
MOST_ELEMENTS = 8  # Elements of an array member at which a pointer may lead to the whole.
MOST_PLACES = 20_000  # Types that contain one type; more are left out.
DEEPEST = 16
STORAGE = (
    "__gnu_cxx::__aligned_membuf<",
    "__gnu_cxx::__aligned_buffer<",
    "boost::unordered::detail::value_base<",
    "boost::multi_index::detail::pod_value_holder<",
)
"""Types that store a value whose type is their template argument, but have no member of that type.
Two kinds of nodes contain them:

- nodes of libstdc++'s containers and of std::make_shared (ext/aligned_buffer.h),
- nodes of Boost 1.74's hash tables and multi_index (boost/unordered/detail/implementation.hpp,
  boost/multi_index/detail/index_node_base.hpp)."""
_MEMBERS = {
    "boost::container::dtl::tree_node<": "m_storage",
    "boost::container::dtl::list_node<": "m_storage",
    "boost::container::dtl::slist_node<": "m_storage",
    "boost::container::base_node<": "m_storage",
    "boost::unordered::detail::node<": "buf",
    "boost::detail::sp_ms_deleter<": "storage_",
}
"""Types with a member that stores a value, and the name of this member. The type of the value is
the template argument of the outer type; the type of the member does not depend on it
(boost/container/detail/tree.hpp and list.hpp of 1.74, node.hpp of 1.83;
boost/unordered/detail/implementation.hpp, 1.83; smart_ptr/make_shared_object.hpp)."""
_SHARED, _BUFFER = "std::__1::__shared_ptr_emplace<", "::_Storage"
"""The same for libc++: the control block of std::make_shared, and the type of its member that
stores the value. The type of the value is the template argument of the control block
(__memory/shared_ptr.h, 19)."""

CALLABLE, _CALLABLE_WORDS = "std::__1::__function::__func<", 3
"""libc++'s class template for objects that store a callable, and the maximum number of words of
such an object in the buffer of std::function (__functional/function.h, 19, __value_func)."""
_LIBRARIES = ("std::", "__gnu_cxx::", "core::", "alloc::", "hashbrown::")
_CONTAINERS = tuple(f"boost::{name}::" for name in ("container", "intrusive", "unordered", "move_detail", "movelib"))
_STORAGE = (
    *STORAGE,
    "std::__detail::_Hash_node_value",
    "core::mem::manually_drop::ManuallyDrop<",
    "core::mem::maybe_dangling::MaybeDangling<",
    "core::mem::maybe_uninit::MaybeUninit<",
)


def is_structure(table: TypeTable, number: int) -> bool:
    """Whether a type is a struct or union whose members are known."""
    return table.kinds[number] in STRUCTURES and table.sizes[number] > 0


class Embedding:
    """The types that contain each type, of one table."""

    def __init__(self, table: TypeTable) -> None:
        self.table = table
        self._known: dict[int, dict[int, list[int]]] = {}
        self._links: dict[int, bool] = {}  # By type: whether it is a link.
        self._around: dict[int, set[int]] = {}  # By type: the types that have it somewhere.

    @cached_property
    def stored(self) -> dict[int, int]:
        """Map a storage type (STORAGE) to the type of its value."""
        table = self.table
        found: dict[int, int] = {}
        if not any(one.encode() in table.strings for one in (*STORAGE, _SHARED)):
            return found
        for number in range(len(table)):
            name = table.text(table.names[number]) if table.kinds[number] in STRUCTURES else ""
            is_shared = name.startswith(_SHARED) and name.endswith(_BUFFER)
            owners = table.find(name[: -len(_BUFFER)])[:1] if is_shared else [number] if name.startswith(STORAGE) else []
            for owner in owners:
                inner = next((part.type for part in table.parts_of(owner) if part.kind == PartKind.TYPE_ARGUMENT), UNKNOWN)
                if 0 < table.size_of(inner) <= table.sizes[number]:
                    found[number] = table.bare(inner)
        return found

    @cached_property
    def _stored_members(self) -> dict[int, tuple[str, int]]:
        """Map a type (_MEMBERS) to the name of the member that stores a value, and the type of this
        value."""
        table = self.table
        found: dict[int, tuple[str, int]] = {}
        starts = tuple(one for one in _MEMBERS if one.encode() in table.strings)
        for number in range(len(table)) if starts else ():
            name = table.text(table.names[number]) if table.kinds[number] in STRUCTURES else ""
            if name.startswith(starts):
                inner = next((part.type for part in table.parts_of(number) if part.kind == PartKind.TYPE_ARGUMENT), UNKNOWN)
                if table.size_of(inner):
                    found[number] = _MEMBERS[name[: name.index("<") + 1]], table.bare(inner)
        return found

    def is_library(self, number: int) -> bool:
        """Whether a type belongs to the standard library of C++ or Rust. If such a type has the
        size of the type with which it begins, it only stores a value of that type."""
        return self.table.text(self.table.names[number]).startswith(_LIBRARIES)

    def is_container_part(self, number: int) -> bool:
        """Whether a type belongs to the standard library or to Boost's containers: their
        comparators, hooks and holders are members of containers or local variables."""
        return self.table.text(self.table.names[number]).startswith((*_LIBRARIES, *_CONTAINERS))

    def is_storage(self, number: int) -> bool:
        """Whether a type of a library only stores a value of another type. That type fits wherever
        the type of the library fits."""
        return self.table.text(self.table.names[number]).startswith(_STORAGE)

    def may_be_alone(self, number: int) -> bool:
        """Whether one value of the type may fill a block of its own. Types of a library that only
        store a value, and links of lists and trees, are always parts of other types."""
        return not self.is_storage(number) and not self._is_link(number)

    def _is_link(self, number: int) -> bool:
        """Whether a type consists of pointers to its own type, as the link of a list does. One
        word may also be a number, such as the colour of a node of a tree, or the bases of nodes of
        the standard library."""
        if number not in self._links:
            table = self.table
            fields = [one for one in table.fields_of(number) if not one.bits]
            own = [one for one in fields if self._end_of_pointers(one.type) == number]
            self._links[number] = bool(own) and (len(own) == len(fields) or (len(fields) <= len(own) + 1 and len(own) > 1))
        return self._links[number]

    def _end_of_pointers(self, number: int) -> int:
        """Return the type that is not a pointer to which a pointer, or a pointer to it, refers."""
        table, bare = self.table, self.table.bare(number)
        for _ in range(DEEPEST):
            if table.kinds[bare] != Kind.POINTER:
                return bare
            bare = table.bare(table.targets[bare])
        return UNKNOWN

    def is_first_member(self, number: int) -> bool:
        """Whether a type of the program that is not derived from a class may begin with an object
        of the class. The first word of such a type is the class's vtable, although the type itself
        has no vtable. libc++'s std::function stores small callables in a buffer at its start."""
        table = self.table
        if table.text(table.names[number]).startswith(CALLABLE) and table.sizes[number] <= _CALLABLE_WORDS * table.word:
            return True
        outer = (one for one in self.places(number).get(0, ()) if one != number)
        return any(not table.flags[one] & Flag.POLYMORPHIC and not self.is_library(one) for one in outer)

    def fields_of(self, number: int) -> Sequence[Field]:
        """Return the fields of a struct or union. A member that stores a value has the type of the
        value."""
        fields = self.table.fields_of(number)
        name, inner = self._stored_members.get(number, ("", UNKNOWN))
        return [one._replace(type=inner) if one.name == name else one for one in fields] if name else fields

    @cached_property
    def _owners(self) -> dict[int, list[tuple[int, int]]]:
        """Map a type to the types that have a member of it, with the offset."""
        table = self.table
        found: dict[int, list[tuple[int, int]]] = {}
        for number, inner in self.stored.items():
            found.setdefault(inner, []).append((number, 0))
        for number, (name, inner) in self._stored_members.items():
            offsets = [one.offset for one in table.fields_of(number) if one.name == name]
            found.setdefault(inner, []).extend((number, offset) for offset in offsets)
        kinds, bare = table.kinds, table.bare
        for number in range(len(table)):
            if not is_structure(table, number):
                continue
            for row in range(table.first_field[number], table.first_field[number + 1]):
                if table.field_kinds[row] > FieldKind.BASE or table.field_bits[row]:
                    continue
                inner, offset = bare(table.field_types[row]), table.field_offsets[row]
                count, step = 1, 0
                while kinds[inner] == Kind.ARRAY:
                    element = bare(table.targets[inner])
                    count, step, inner = (count * table.counts[inner] if count * table.counts[inner] else 1), table.sizes[element], element
                if kinds[inner] in STRUCTURES and inner != number:
                    for at in range(min(count, MOST_ELEMENTS) if step else 1):
                        found.setdefault(inner, []).append((number, offset + at * step))
        return found

    def places(self, inner: int) -> dict[int, list[int]]:
        """Map offsets to the named types that contain `inner` at this offset. Offset 0 includes
        `inner` itself."""
        found = self._known.get(inner)
        if found is None:
            found = self._known[inner] = {0: [inner]}
            seen = {(inner, 0)}
            work = [(inner, 0, 0, True)]
            while work and len(seen) < MOST_PLACES:
                at, offset, depth, is_member = work.pop()
                owners = [(owner, where, True) for owner, where in self._owners.get(at, ())]
                # `at` began with the members of another struct: all further such structs are known.
                larger = self._prefixes.find_larger(at) if is_member else ()
                for owner, where, by_member in (*owners, *((owner, 0, False) for owner in larger)):
                    here = (owner, offset + where)
                    if here in seen or depth >= DEEPEST:
                        continue
                    seen.add(here)
                    work.append((*here, depth + 1, by_member))
                    if self.table.names[owner]:
                        found.setdefault(here[1], []).append(owner)
        return found

    def parts(self, types: Iterable[int]) -> set[int]:
        """Return the structs and unions among these types, and those of their members and
        elements."""
        table = self.table
        work = [table.bare(number) for number in types]
        found: set[int] = set()
        while work:
            number = work.pop()
            while table.kinds[number] == Kind.ARRAY:
                number = table.bare(table.targets[number])
            if table.kinds[number] in STRUCTURES and number not in found:
                found.add(number)
                work += map(table.bare, table.field_types[table.first_field[number] : table.first_field[number + 1]])
        return found

    def contains(self, outer: int, inner: int) -> bool:
        """Whether `outer` is another type than `inner`, and has it somewhere."""
        if outer == inner:
            return False
        if inner not in self._around:
            self._around[inner] = {number for found in self.places(inner).values() for number in found}
        return outer in self._around[inner]

    @cached_property
    def _prefixes(self) -> SharedPrefixes:
        """The structs that begin with the members of other structs."""
        return SharedPrefixes(self.table)

    def has(self, outer: int, offset: int, inner: int, by_members: bool = True) -> bool:
        """Whether `outer` is `inner` at this offset, or has it there. `by_members`: a struct also
        has the structs with whose members it begins."""
        table = self.table
        for _ in range(DEEPEST * 2):
            outer = table.bare(outer)
            if offset == 0 and (outer == inner or (by_members and self._prefixes.begins_with(outer, inner))):
                return True
            if table.kinds[outer] == Kind.ARRAY:
                element = table.bare(table.targets[outer])
                if not table.sizes[element]:
                    return False
                outer, offset = element, offset % table.sizes[element]
                continue
            if table.kinds[outer] not in STRUCTURES:
                return False
            if outer in self.stored:
                outer = self.stored[outer]
                continue
            members = [
                one for one in self.fields_of(outer) if not one.bits and one.offset <= offset < one.offset + max(self._size(one.type), 1)
            ]
            if table.kinds[outer] == Kind.UNION or len(members) > 1:
                return any(self.has(one.type, offset - one.offset, inner, by_members) for one in members)
            if not members:
                return False
            outer, offset = members[0].type, offset - members[0].offset
        return False

    def has_bytes(self, outer: int, offset: int) -> bool:
        """Whether `outer` has an array of bytes at this offset. A program may store objects of
        other types in such an array."""
        table = self.table
        for _ in range(DEEPEST * 2):
            outer = table.bare(outer)
            if table.kinds[outer] == Kind.ARRAY:
                outer = table.bare(table.targets[outer])
                if table.sizes[outer] <= 1:
                    return table.sizes[outer] == 1
                offset %= table.sizes[outer]
                continue
            if table.kinds[outer] not in STRUCTURES:
                return False
            found = [one for one in table.fields_of(outer) if not one.bits and 0 <= offset - one.offset < max(self._size(one.type), 1)]
            if len(found) != 1:
                return any(self.has_bytes(one.type, offset - one.offset) for one in found)
            outer, offset = found[0].type, offset - found[0].offset
        return False

    def _size(self, number: int) -> int:
        bare = self.table.bare(number)
        # A flexible array extends to the end of the block.
        return 1 << 40 if self.table.kinds[bare] == Kind.ARRAY and not self.table.sizes[bare] else self.table.sizes[bare]

    @cached_property
    def _by_size(self) -> tuple[list[int], list[int]]:
        table = self.table
        found = sorted(
            (table.sizes[number], number) for number in range(len(table)) if table.kinds[number] == Kind.STRUCT and table.names[number]
        )
        return [size for size, _ in found], [number for _, number in found]

    @cached_property
    def trait_vtables(self) -> list[tuple[int, int]]:
        """The addresses of the vtables of Rust's trait objects, with the types of the values."""
        return sorted(find_vtables(self.table).items())

    def polymorphic(self) -> list[int]:
        """Return the classes with a pointer to a vtable."""
        table = self.table
        return [number for number in range(len(table)) if table.flags[number] & Flag.POLYMORPHIC and table.sizes[number]]

    def of_sizes(self, least: int, most: int) -> list[int]:
        """Return the named structs of `least` to `most` bytes."""
        sizes, numbers = self._by_size
        return numbers[bisect_left(sizes, max(least, 1)) : bisect_right(sizes, most)]
