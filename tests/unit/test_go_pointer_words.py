"""Test the offsets of pointers in Go's types, which are computed from the fields, and types that contradict themselves."""

from __future__ import annotations

from typing import Optional, cast

import pytest

from findleaks.runtimes.go.pointer_words import pointer_offsets
from findleaks.runtimes.go.types import ARRAY, INTERFACE, POINTER, SLICE, STRUCT, Field, Type, Types

NUMBER, PAIR, LIST = 2, 100, 200


class KnownTypes:
    """Types by address, and the fields of structures. NUMBER is a type of 8 bytes without
    pointers."""

    def __init__(self, structures: dict[int, tuple[int, list[tuple[int, int]]]], others: list[Type]) -> None:
        self.fields_of = {address: [Field("f", of, offset) for of, offset in fields] for address, (_, fields) in structures.items()}
        made = [Type(address, "s", STRUCT, size, size, 0, False) for address, (size, _) in structures.items()]
        self.known = {one.address: one for one in (*made, *others, Type(NUMBER, "int", 2, 8, 0, 0, False))}

    def at(self, address: int) -> Optional[Type]:
        return self.known.get(address)

    def fields(self, address: int) -> list[Field]:
        return self.fields_of.get(address, [])


def other(kind: int, size: int, pointers: int = 8, elem: int = 0) -> Type:
    return Type(kind * 1000, "t", kind, size, pointers, elem, False)


def offsets(known: KnownTypes, address: int, most: int = 1000) -> Optional[list[int]]:
    return pointer_offsets(cast(Types, known), address, iter(range(most)))


def test_pointers_of_fields_and_elements() -> None:
    pair = (40, [(SLICE * 1000, 0), (INTERFACE * 1000, 24)])
    known = KnownTypes({PAIR: pair}, [other(SLICE, 24), other(INTERFACE, 16, 16), other(ARRAY, 80, 80, PAIR)])
    assert offsets(known, PAIR) == [0, 32]
    assert offsets(known, ARRAY * 1000) == [0, 32, 40, 72]
    assert offsets(known, NUMBER) == []


def test_a_pointer_to_memory_outside_of_the_heap_does_not_count() -> None:
    known = KnownTypes({PAIR: (16, [(NUMBER, 0), (POINTER * 1000, 8)])}, [other(POINTER, 8, 0)])
    assert offsets(known, PAIR) == []


@pytest.mark.parametrize(
    "fields",
    [
        [(PAIR, 0)] * 50,  # contains itself, 50 times
        [(POINTER * 1000, 16)],  # the field begins at the end of the structure
        [(POINTER * 1000, 4)],
        [(LIST, 0)],  # the field's type is unreadable
    ],
)
def test_a_type_that_contradicts_itself_is_unknown(fields: list[tuple[int, int]]) -> None:
    known = KnownTypes({PAIR: (16, fields)}, [other(POINTER, 8)])
    assert offsets(known, PAIR) is None


def test_types_share_a_limit() -> None:
    known, left = KnownTypes({PAIR: (16, [(POINTER * 1000, 0)] * 2)}, [other(POINTER, 8)]), iter(range(4))
    assert pointer_offsets(cast(Types, known), PAIR, left) == [0, 0]
    assert pointer_offsets(cast(Types, known), PAIR, left) is None
    nested = KnownTypes({8 * level: (16, [(8 * level + 8, 0)] * 100) for level in range(1, 16)}, [other(POINTER, 8)._replace(address=128)])
    assert offsets(nested, 8) is None
    assert offsets(nested, 8 * 15) == [0] * 100
