"""Find structs that begin with the members of another struct, without a member of its type. Macros
declare such members: in C, `struct circle { SHAPE_HEAD; double radius; }` begins as `struct shape {
SHAPE_HEAD; }` does, and the program uses a `struct shape *` to refer to both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable

LEAST_MEMBERS = 2  # One equal member, such as `name` or `next`, says nothing.


class SharedPrefixes:
    """The structs of a table that have all members of a smaller struct, and after them further
    ones. The members must have the same names, types and places.

    A chain stands for the first members of a struct: the chain of all but the last one, and the
    last one. Structs with the same first members have the same chain. The number of chains is at
    most the number of members, although the number of pairs of structs may be its square."""

    def __init__(self, table: TypeTable) -> None:
        self._chains: dict[int, list[int]] = {}  # By struct: the chain of each of its members.
        self._longer: dict[int, list[int]] = {}  # By chain: the structs with further members.
        bare, numbers = table.bare, dict[tuple[int, int, int, int, int], int]()
        for number in _plain_structs(table):
            chain, own = 0, list[int]()
            for row in range(table.first_field[number], table.first_field[number + 1]):
                key = chain, table.field_names[row], bare(table.field_types[row]), table.field_offsets[row], table.field_bits[row]
                chain = numbers.setdefault(key, len(numbers) + 1)
                own.append(chain)
            self._chains[number] = own
        whole = {own[-1] for own in self._chains.values()}
        for number, own in self._chains.items():
            for chain in own[LEAST_MEMBERS - 1 : -1]:
                if chain in whole:
                    self._longer.setdefault(chain, []).append(number)

    def find_larger(self, number: int) -> Sequence[int]:
        """Return the structs that begin with all members of a struct, and have further ones."""
        own = self._chains.get(number)
        return self._longer.get(own[-1], ()) if own else ()

    def begins_with(self, larger: int, smaller: int) -> bool:
        """Whether a struct has all members of another one, and after them further ones."""
        outer, inner = self._chains.get(larger, ()), self._chains.get(smaller, ())
        return 0 < len(inner) < len(outer) and outer[len(inner) - 1] == inner[-1]


def _plain_structs(table: TypeTable) -> Iterator[int]:
    """Yield the structs that have only members, and at least LEAST_MEMBERS of them. Structs of
    namespaces and templates have base classes instead of macros, and Rust has no macros for this.
    """
    names, sizes, first, kinds = table.names, table.sizes, table.first_field, table.field_kinds
    for number, kind in enumerate(table.kinds):
        count = first[number + 1] - first[number]
        if kind != Kind.STRUCT or not names[number] or not sizes[number] or count < LEAST_MEMBERS:
            continue
        # A table that was loaded from the cache has memoryviews, which have no method count().
        members = bytes(kinds[first[number] : first[number + 1]])
        if members.count(FieldKind.MEMBER) == count and "::" not in table.text(names[number]):
            yield number
