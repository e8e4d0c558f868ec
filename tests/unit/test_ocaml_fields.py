"""The fields of OCaml's modules in handmade memory: the objects to which they refer, and hostile words."""

from __future__ import annotations

from array import array

import graphs
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.terms import State
from findleaks.runtimes.ocaml.module_fields import list_holders
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Symbol

DATA, HEAP, WORD = 0x400000, 0x800000, 8
MODULE = DATA + 20 * WORD  # the block with the fields
CHUNK = HEAP + 16  # the block of malloc that contains objects
ARRAY = HEAP + 0x2000  # a block of 96 bytes to which an object refers


def holders(static: dict[int, int], objects: dict[int, int]) -> list[tuple[str, int, int, int]]:
    """Return the holders of words, given by address: static data, and a heap of malloc with two blocks."""
    data, heap = array("Q", bytes(4096)), array("Q", bytes(0x4000))
    words = {DATA: DATA + 8 * WORD, DATA + 8 * WORD: MODULE, **static}
    for start, memory, values in ((DATA, data, words), (HEAP, heap, objects)):
        for address, value in values.items():
            memory[(address - start) // WORD] = value
    symbols = [
        Symbol("caml_globals", DATA, 0),
        Symbol("camlDune__exe__Main", MODULE, 0),
        Symbol("camlDune__exe__Main__1", MODULE + WORD, 0),
    ]
    target = FakeTarget({DATA: data.tobytes(), HEAP: heap.tobytes()}, symbols=symbols)
    blocks = graphs.pure(X86_64).blocks(X86_64, 16)
    blocks.append([CHUNK, ARRAY], [0x1000, 96], [State.IN_USE, State.IN_USE])
    blocks.seal()
    found = list_holders(target, blocks, [Range(HEAP, HEAP + 0x4000)], lambda: None)
    assert all(one.is_whole for one in found)
    return [one[:4] for one in found]


def header(words: int, tag: int = 0) -> int:
    return words << 10 | tag


def test_targets_of_fields() -> None:
    """Four objects: a hash table whose buckets refer to the table itself, a closure with an infix pointer to it, a
    custom block, and a shared string."""
    table, buckets, custom, closure, string = (CHUNK + 0x100 * number for number in range(1, 6))
    static = {MODULE - WORD: header(4), MODULE: 7, MODULE + WORD: table, MODULE + 2 * WORD: string, MODULE + 3 * WORD: string}
    objects = {
        **{table - WORD: header(4), table: 3 << 1 | 1, table + 8: buckets, table + 16: 1, table + 24: 33},
        **{buckets - WORD: header(4), buckets: table, buckets + 8: custom, buckets + 16: closure + 24, buckets + 24: 1},
        **{custom - WORD: header(3, 255), custom: DATA, custom + 8: ARRAY, custom + 16: table},
        **{closure - WORD: header(4, 247), closure: 0x1234567, closure + 16: header(3, 249)},
        **{string - WORD: header(2, 252), string: ARRAY},
    }
    assert holders(static, objects) == [
        ("field 2 of the module Dune.exe.Main (hash table, 3 entries)", 4, 1, 8 * (5 + 5 + 4 + 5) + 96),
        ("field 3 of the module Dune.exe.Main", 1, 0, 24),
    ]


def test_a_pointer_to_a_block_of_malloc_is_no_object() -> None:
    """The word before it belongs to the allocator. An object does not extend beyond the end of a block."""
    beyond = CHUNK + 0x1000 - 32
    static = {MODULE - WORD: header(2), MODULE: ARRAY, MODULE + WORD: beyond}
    assert holders(static, {ARRAY - WORD: header(6), beyond - WORD: header(1 << 40)}) == []


@given(
    words=st.lists(
        st.one_of(st.integers(0, 2**64 - 1), st.integers(DATA // 8, (HEAP + 0x4000) // 8).map(lambda word: 8 * word)), max_size=60
    )
)
@settings(max_examples=graphs.share(60))
def test_hostile_words(words: list[int]) -> None:
    static = {DATA + WORD * (2 + number): word for number, word in enumerate(words)}
    objects = {CHUNK + WORD * number: word for number, word in enumerate(words)}
    for _, found, blocks, _ in holders(static, objects):
        assert found >= 1 and blocks <= 2
