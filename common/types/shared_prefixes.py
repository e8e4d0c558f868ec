"""Find structs that begin with the members of another struct, without a member of its type. Macros
declare such members: in C, `struct circle { SHAPE_HEAD; double radius; }` begins as `struct shape {
SHAPE_HEAD; }` does, and the program uses a `struct shape *` to refer to both."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable

LEAST_MEMBERS = 2  # One equal member, such as `name` or `next`, says nothing.


def find_prefixed(table: TypeTable) -> Iterator[tuple[int, int]]:
    """Yield the structs that have all members of a smaller struct, and after them further ones: the
    smaller struct and the larger one. The members must have the same names, types and places."""
    bare = table.bare
    rows = {number: range(table.first_field[number], table.first_field[number + 1]) for number in _plain_structs(table)}
    # A chain stands for the first members of a struct: the chain of all but the last one, and the
    # last one. So it takes one look-up for each member to find all structs with the same members.
    chains: dict[tuple[int, int, int, int, int], int] = {}
    ends: dict[int, list[int]] = {}
    begun: list[tuple[int, list[int]]] = []
    for number, members in rows.items():
        chain, own = 0, []
        for row in members:
            key = chain, table.field_names[row], bare(table.field_types[row]), table.field_offsets[row], table.field_bits[row]
            chain = chains.setdefault(key, len(chains) + 1)
            own.append(chain)
        ends.setdefault(chain, []).append(number)
        begun.append((number, own[LEAST_MEMBERS - 1 : -1]))
    for number, own in begun:
        for chain in own:
            yield from ((smaller, number) for smaller in ends.get(chain, ()))


def _plain_structs(table: TypeTable) -> Iterator[int]:
    """Yield the structs that have only members, and at least LEAST_MEMBERS of them. Structs of
    namespaces and templates have base classes instead of macros, and Rust has no macros for this.
    """
    names, sizes, first, kinds = table.names, table.sizes, table.first_field, table.field_kinds
    for number, kind in enumerate(table.kinds):
        count = first[number + 1] - first[number]
        if kind != Kind.STRUCT or not names[number] or not sizes[number] or count < LEAST_MEMBERS:
            continue
        # A table that was loaded from the cache has memoryviews, which cannot count.
        members = bytes(kinds[first[number] : first[number + 1]])
        if members.count(FieldKind.MEMBER) == count and "::" not in table.text(names[number]):
            yield number
