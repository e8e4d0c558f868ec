"""Tests of structs that begin with the members of another struct, as macros declare them."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.debuginfo.type_table import FieldKind, Kind, TypeTable
from findleaks.types.embedding import Embedding

MANY = 400


def make_table(structs: Sequence[Sequence[str]]) -> TypeTable:
    """Return a table with a number as type 0, and these structs as the types from 1 on. Each member is a number of eight bytes."""
    table = TypeTable(8)
    names = sorted({name for members in structs for name in members} | {"long", "made"})
    table.strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = {name: table.strings.index(b"\0" + name.encode() + b"\0") + 1 for name in names}
    for members in ((), *structs):
        table.kinds.append(Kind.STRUCT if members else Kind.BASE)
        table.flags.append(0)
        table.names.append(places["made" if members else "long"])
        table.sizes.append(8 * max(len(members), 1))
        table.targets.append(0)
        table.counts.append(0)
        table.first_field.append(len(table.field_kinds))
        for at, name in enumerate(members):
            table.field_kinds.append(FieldKind.MEMBER)
            table.field_names.append(places[name])
            table.field_offsets.append(8 * at)
            table.field_types.append(0)
            table.field_bits.append(0)
            table.field_values.append(0)
        table.first_part.append(0)
    table.first_field.append(len(table.field_kinds))
    table.first_part.append(0)
    return table


def test_structs_that_begin_with_another_contain_it() -> None:
    """Two equal structs do not contain each other, and one equal member is not enough."""
    embedding = Embedding(make_table([("kind", "next"), ("kind", "next"), ("kind", "next", "size"), ("next", "kind", "size"), ("kind",)]))
    assert embedding.places(1) == {0: [1, 3]}
    assert embedding.places(5) == {0: [5]}
    assert embedding.has(3, 0, 1) and embedding.has(3, 0, 2)
    assert not embedding.has(3, 0, 1, by_members=False)
    assert not any(embedding.has(outer, 0, inner) for outer, inner in ((1, 2), (1, 3), (4, 1), (3, 5)))


def test_many_structs_with_the_same_members() -> None:
    """The memory is proportional to the number of members, although the number of pairs is its square."""
    table = make_table([("kind", "next", *(("size",) if at % 2 else ())) for at in range(MANY)])
    embedding = Embedding(table)
    assert embedding.places(1) == {0: [1, *range(2, MANY + 1, 2)]}
    assert embedding.has(MANY, 0, 1) and not embedding.has(1, 0, MANY)
    prefixes = embedding._prefixes
    assert sum(map(len, prefixes._longer.values())) <= len(table.field_kinds)
    assert prefixes.find_larger(1) is prefixes.find_larger(3)


def test_structs_that_grow_by_one_member() -> None:
    """Each struct begins with the members of all smaller structs."""
    embedding = Embedding(make_table([("kind", "next", *("size",) * at) for at in range(MANY)]))
    assert embedding.places(1)[0] == [1, *range(2, MANY + 1)]
    assert embedding.places(MANY - 1)[0] == [MANY - 1, MANY]
