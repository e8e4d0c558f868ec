"""Types of Go's objects: the C engine and the reference engine agree, and no object gets a type that it cannot have."""

from __future__ import annotations

import random
import struct
from array import array
from typing import Any, NamedTuple

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.go.code_objects import CodeObjects
from findleaks.runtimes.go.engine import (
    ANY,
    ARENA,
    DIRECTORY,
    INSIDE,
    INTERFACE,
    MOST_NARROW,
    NARROW_NONE,
    NONE,
    NOTHING,
    PAGE,
    POINTER,
    RAW,
    SECOND,
    SLICE,
    TAGGED,
    TEXT,
    TINY,
    UNTAGGED,
    TypeSearch,
    TypeTable,
    count_typed,
)
from findleaks.target.arch import X86_64

BASE, TYPES, DATA = 0xC000000000, 0x500000, 0x600000
SIZES = {3: 8, TINY: 16, 8: 48, 9: 48, 12: 96, 40: 1024, 41: 1024, 0: 2 * PAGE}
"""By class, the bytes of its slots."""

Slots = list[tuple[int, int, int]]


class Types(NamedTuple):
    """Types by number: bytes, kind of pointers, slots. Also, by the address of a type or itab: pointee, element."""

    rows: list[tuple[int, int, Slots]]
    known: dict[int, tuple[int, int]]


def table(types: Types, classes: list[int], headers: bool = True) -> TypeTable:
    first, offsets, kinds, targets = array("I", [0]), array("I"), bytearray(), array("I")
    for _, _, slots in types.rows:
        for offset, kind, target in slots:
            offsets.append(offset)
            kinds.append(kind)
            targets.append(target)
        first.append(len(offsets))
    order = sorted(types.known)
    pages = bytearray([NOTHING]) * (ARENA // PAGE)
    pages[: len(classes)] = bytes(classes)
    below = array("Q", [0] * 128)
    below[TINY >> 1], below[8 >> 1], below[12 >> 1], below[40 >> 1] = 8, 32, 80, 896
    return TypeTable(
        array("Q", order),
        array("I", [types.known[address][0] for address in order]),
        array("I", [types.known[address][1] for address in order]),
        array("Q", [size for size, _, _ in types.rows]),
        bytearray(pointers for _, pointers, _ in types.rows),
        first,
        offsets,
        kinds,
        targets,
        array("Q", [BASE]),
        pages,
        below,
        headers,
    )


def find_types(engine: Engine, known: TypeTable, slots: list[tuple[int, int, State]], pieces: list[Any], budget: int) -> list[int]:
    blocks = engine.blocks(X86_64, 8)
    blocks.append([start for start, _, _ in slots], [size for _, size, _ in slots], [state for _, _, state in slots])
    blocks.seal()
    search = TypeSearch(blocks, known)
    while not search.run(engine, pieces, budget):
        pass
    assert search.types.itemsize == (2 if len(known.sizes) <= MOST_NARROW else 4)
    types = [search.type_of(index) for index in range(len(blocks))]
    with_slots = [value != NONE and known.first[value >> 1] < known.first[(value >> 1) + 1] for value in types]
    assert search.state[2] == sum(with_slots)  # only objects that can have references are followed
    return types


def lay_out(classes: list[int], state: random.Random) -> list[tuple[int, int, State]]:
    slots, page = [], 0
    while page < len(classes):
        size = SIZES.get(classes[page], 0)
        room = PAGE if size <= PAGE else size
        for at in range(0, room - size + 1, size) if size else ():
            slots.append((BASE + page * PAGE + at, size, State.FREE if state.random() < 0.1 else State.IN_USE))
        page += max(1, room // PAGE)
    return slots


@pytest.mark.parametrize("seed", range(12))
def test_engines_agree(seed: int) -> None:
    state = random.Random(seed)
    classes = [state.choice([3, TINY, 8, 9, 12, 40, 41, RAW, NOTHING]) for _ in range(10)] + [0, 0]
    slots = lay_out(classes, state)
    numbers = 8
    rows: list[tuple[int, int, Slots]] = []
    for _ in range(numbers):
        size = state.choice([1, 8, 16, 40, 48, 96, 512, 0])
        its: Slots = []
        for _ in range(state.choice([0, 0, 1, 2])):
            its.append((state.choice([0, 0, 8]), state.choice([INSIDE, TAGGED, UNTAGGED]), state.randrange(2 * numbers + 3)))
        for offset in range(0, size - 15, 16):
            kind = state.choice([POINTER, SLICE, TEXT, INTERFACE, DIRECTORY])
            its.append((offset, kind, state.randrange(2 * numbers + 3)))
            its += [(offset, SECOND, state.randrange(2 * numbers))] if kind == DIRECTORY else []
        rows.append((size, state.choice([0, 1, 1, ANY]), its))
    addresses = [TYPES + 64 * number for number in range(12)]
    values = [*range(2 * numbers), NONE]
    if seed % 4 == 3:  # types whose values take 4 bytes
        rows += [(0, 0, [])] * MOST_NARROW
    types = Types(rows, {one: (state.choice(values), state.choice([*range(numbers), NONE])) for one in addresses})
    starts = [start for start, _, _ in slots]
    memory = bytearray()
    for _ in range(len(classes) * PAGE // 8):
        word = state.choice([0, state.randrange(1 << 20), state.choice(addresses), state.choice(starts), state.choice(starts) + 8])
        memory += struct.pack("<Q", word)
    data = b"".join(struct.pack("<QQ", state.choice(addresses), state.choice(starts)) for _ in range(8))
    cuts = sorted(8 * state.randrange(len(memory) // 8) for _ in range(3))
    pieces = [graphs.piece(DATA, data)]
    pieces += [graphs.piece(BASE + a, bytes(memory[a:b])) for a, b in zip([0, *cuts], [*cuts, len(memory)]) if b > a]
    known = table(types, classes, seed % 3 > 0)
    expected = find_types(graphs.pure(), known, slots, pieces, 1 << 20)
    assert sum(value != NONE for value in expected) > 3
    assert all(one[2] == State.IN_USE for one, value in zip(slots, expected) if value != NONE)
    for budget in (7, 1 << 20):
        assert find_types(graphs.native(), known, slots, pieces, budget) == expected


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_sizes_and_pointers_decide(engine: Any) -> None:
    """The data of an interface has a type of 40 bytes with pointers. Only an object in a slot of 48 bytes with pointers gets this type."""
    types = Types([(40, 1, []), (48, 0, [])], {TYPES: (0, 0), TYPES + 64: (2, 1)})
    classes = [8, 9, 12]
    slots = lay_out(classes, random.Random(0))
    slots = [(start, size, State.IN_USE) for start, size, _ in slots]
    by_page = [next(start for start, _, _ in slots if start >= BASE + page * PAGE) for page in range(3)]
    for type_, expected in ((TYPES, [0, NONE, NONE]), (TYPES + 64, [NONE, 2, NONE])):
        data = b"".join(struct.pack("<QQ", type_, start) for start in by_page)
        pieces = [graphs.piece(DATA, data), graphs.piece(BASE, bytes(3 * PAGE))]
        types_of = dict(zip((start for start, _, _ in slots), find_types(engine(), table(types, classes), slots, pieces, 100)))
        assert [types_of[start] for start in by_page] == expected


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_headers_give_arrays_their_type(engine: Any) -> None:
    """A slot of 1,024 bytes has a header: 21 elements of 48 bytes with a pointer each, to objects of 96 bytes."""
    types = Types([(48, 1, [(0, POINTER, 2)]), (96, 1, [])], {TYPES: (0, 0)})
    classes = [40, 12]
    slots = [(start, size, State.IN_USE) for start, size, _ in lay_out(classes, random.Random(0))]
    memory = bytearray(2 * PAGE)
    struct.pack_into("<Q", memory, 0, TYPES)
    targets = [BASE + PAGE + 96 * number for number in range(21)]
    for number, target in enumerate(targets):
        struct.pack_into("<Q", memory, 8 + 48 * number, target)
    values = dict(
        zip((start for start, _, _ in slots), find_types(engine(), table(types, classes), slots, [graphs.piece(BASE, bytes(memory))], 5))
    )
    assert values[BASE] == 1  # an array of objects of type 0
    assert [start for start, value in values.items() if value == 2] == targets


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_objects_of_which_a_pointer_names_a_part(engine: Any) -> None:
    """Type 0 is a part of objects of type 1, at offset 16. Type 2 is the first byte of objects of type 3 if this byte is not 0, and of
    type 4 if it is 0. The references of these objects are followed, too."""
    slots_of_parts: list[Slots] = [[(16, INSIDE, 2)], [(0, TAGGED, 6), (0, UNTAGGED, 8)]]
    rows: list[tuple[int, int, Slots]] = [(40, 1, slots_of_parts[0]), (96, 1, [(8, POINTER, 4)]), (1, 0, slots_of_parts[1])]
    rows += [(48, 1, [(8, POINTER, 4)]), (96, 1, [])]
    types = Types(rows, {TYPES: (0, 0)})
    classes = [12, 8]
    slots = [(start, size, State.IN_USE) for start, size, _ in lay_out(classes, random.Random(0))]
    memory = bytearray(2 * PAGE)
    first, leaf, inner = BASE, BASE + PAGE, BASE + 96
    struct.pack_into("<Q", memory, 8, leaf)  # a pointer with a tag, to an object of 48 bytes
    struct.pack_into("<QQ", memory, PAGE, 1, inner)  # a pointer without a tag, to an object of 96 bytes
    pieces = [graphs.piece(DATA, struct.pack("<QQ", TYPES, first + 16)), graphs.piece(BASE, bytes(memory))]
    values = dict(zip((start for start, _, _ in slots), find_types(engine(), table(types, classes), slots, pieces, 100)))
    assert {start: value for start, value in values.items() if value != NONE} == {first: 2, leaf: 6, inner: 8}


def test_the_code_of_the_program_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a part of the code of a large program is read."""
    names = {1: "net/http.init", 2: "main.load", 3: "runtime.main", 4: "example.com/shop.(*Cart).Add", 5: "sync.(*Pool).Get"}
    monkeypatch.setattr(CodeObjects, "_name", lambda self, function: names[function])
    assert CodeObjects.__new__(CodeObjects)._order_functions([1, 4, 3, 2, 4, 5]) == [4, 2, 1, 3, 5]


@pytest.mark.parametrize(("code", "count"), [("H", 3), ("H", 0x7F7F), ("H", 0x7FFF), ("I", 3), ("I", 1 << 20)])
def test_number_of_objects_with_a_type(code: str, count: int) -> None:
    """The bytes of values that are types look like those of no type if they are read at odd places."""
    nothing = NARROW_NONE if code == "H" else NONE
    values = [value for value in (0, 1, 0xFF, 0xFF00, 0xFFFE, 2 * count - 1) if value < 2 * count]
    types = array(code, [one for value in values for one in (nothing, value, value, nothing, nothing)])
    assert count_typed(types, count) == 2 * len(values)
