"""Both engines, in all four variants, find the same unused words of lists and of values, hashes, references, immortal
objects, and free-threaded objects."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_heaps import HEAP, PROGRAM, Memory

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import LAST_WORD, Exclusion, State
from findleaks.runtimes.cpython.buffers import ARRAY, BUFFERS, BYTES, CHILDREN, NO_POINTERS, POINTERS
from findleaks.runtimes.cpython.engine import LEAF, NO_OBJECT, ObjectTally, TypeColumns, count_objects, immortal_objects
from findleaks.runtimes.cpython.storage import DEQUE, KEYS, LIST, SET, SHARED, SPARE, TAGGED, VALUES, Storage, unused_storage
from findleaks.runtimes.object_references import ObjectBlocks, find_references
from findleaks.target.arch import Arch

LISTS, OWNERS, PLAIN, DEQUES, TAGGED_OWNERS, SETS = TYPES = [0x9D8000, 0x9D9000, 0x9DA000, 0x9DB000, 0x9DC000, 0x9DD000]
KINDS = bytes([LIST, VALUES, KEYS | SHARED | VALUES | TAGGED, DEQUE | SPARE, TAGGED, SET])
OLD_KINDS = bytes([*KINDS[:2], KEYS, *KINDS[3:]])  # of 3.10 and older
NO_BUFFERS = [0] * BUFFERS * len(TYPES)
RANDOM_BUFFERS = [0, 0, 0, 0, 3 | POINTERS << 8, 5 | CHILDREN << 8, 4 | BYTES << 8, 0, 2 | NO_POINTERS << 8, 0, 3 | ARRAY << 8, 0]
ARCHES = st.sampled_from(graphs.ARCHES)


def make_tally(blocks: Blocks, arch: Arch, shift: int) -> ObjectTally:
    offsets = bytes([2 * arch.word + shift, 4 * arch.word + shift, shift, 2 * arch.word + shift, 4 * arch.word + shift, shift])
    return ObjectTally.of(blocks, TYPES, TypeColumns(offsets, bytes(6), bytes(6), bytes(6)), PROGRAM, shift)


def find_unused(
    engine: Engine, memory: Memory, shift: int, cuts: list[int], kinds: bytes = KINDS, buffers: Sequence[int] = NO_BUFFERS
) -> dict[str, Any]:
    """Return the results of both passes if the memory is divided at these offsets."""
    blocks = memory.built(engine)
    tally = make_tally(blocks, memory.arch, shift)
    bounds = [0, *cuts, len(memory.data)]
    pieces = [graphs.piece(HEAP + start, bytes(memory.data[start:end])) for start, end in zip(bounds, bounds[1:])]
    cut = [address for piece in pieces for address in count_objects(engine, blocks, piece, tally)]
    patterns: dict[int, int] = {}

    def pattern(mask: int) -> int:
        return patterns.setdefault(mask, len(patterns) + 1)

    rest = unused_storage(engine, blocks, lambda: pieces, tally, Storage(kinds, array("I", buffers)), pattern)
    immortal = [list(immortal_objects(engine, blocks, piece, tally)) for piece in pieces]
    masks = {number: mask for mask, number in patterns.items()}
    graph = engine.graph(blocks)
    graph.exclude_words(tally.patterns, [Exclusion(mask) for mask in [0, *patterns]])
    for piece in pieces:
        graph.scan_blocks(piece)
    objects = ObjectBlocks(tally.found, tally.offsets, tally.shift)
    references = [find_references(engine, graph, piece, objects, kind).tolist() for piece in pieces for kind in (False, True)]
    return {
        "found": tally.found.tolist(),
        "sums": tally.sums.tolist(),
        "masks": [masks.get(number, 0) for number in tally.patterns],
        "rest": rest,
        "immortal": immortal,
        "cut": cut,
        "references": references,
    }


def random_memory(rng: random.Random, arch: Arch, shift: int) -> Memory:
    memory, at, word = Memory(arch, 1200), 0, arch.word
    gap = shift // word
    starts = []
    while at < 1000:
        words = rng.choice([4, 6, 8, 10, 12, 16, 66, 70, 70, 100])
        starts.append((at, words))
        memory.block(at, words, State(rng.choice([0] * 9 + [1])))
        at += words + 2 * rng.randrange(2)
    for place, words in starts:
        picks = [HEAP + one * word for one, _ in starts]
        values = [0, 1, PLAIN, 0x9D0000, 5000 * word, rng.randrange(1 << 8 * word)]
        memory.put(
            place,
            *(rng.choice([*values, rng.choice(picks), rng.choice(picks) + shift, rng.choice(picks) + 2 * word]) for _ in range(words)),
        )
        kind = rng.choice([0, 1, 2, 3, 3, 4, 5, 6])
        head = (2, 4, 0, 2, 4, 0, 0)[kind] + gap
        if kind < 6 and words >= head + 5:
            if gap:
                memory.put(place + head - gap, rng.choice([0, 8192]))
                local, bits = rng.choice([1, 3, 0xFFFFFFFF]), rng.choice([0, 1, 64])
                raw = bytes([rng.choice([0, 1]), bits]) + local.to_bytes(4, arch.byteorder)
                end = (place + head) * word
                memory.data[end - 6 : end] = raw
                memory.data[end - 8 : end - 6] = bytes(2)
            memory.put(place + head, rng.choice([1, 3, 7]), TYPES[kind])
        if kind == 0 and words >= head + 5:
            target, room = rng.choice(starts)
            room -= rng.randrange(3)
            items = rng.randrange(room + 2)
            memory.put(place + head + 2, items, HEAP + (target + (1 if shift else 0)) * word, room - (1 if shift else 0))
            if rng.random() < 0.8:
                memory.put(target, *(rng.choice([0, 0x9D0000]) for _ in range(min(items + 1, room))))
        if kind == 2 and words >= head + 5:
            target, room = rng.choice(starts)
            memory.put(place + head + 4, HEAP + target * word)
            if rng.random() < 0.8:
                slots, kinds = rng.choice([3, 4, 5, 6]), rng.choice([0, 1, 2, 3])
                memory.data[(target + 1) * word : (target + 1) * word + 3] = bytes([slots, slots, kinds])
                if rng.random() < 0.3:  # keys of Python 3.10
                    memory.put(target + 1, rng.choice([4, 8, 16, 24]), rng.choice([0, 0x9D0000]))
        if kind == 5 and words >= head + 6:
            target, room = rng.choice(starts)
            memory.put(place + head + 4, max(room - rng.randrange(9), 0) // 2 - 1 & arch.mask, HEAP + target * word)
        if kind == 3 and words >= head + 9:
            put_deque(rng, memory, place + head, [HEAP + one * word for one, size in starts if size in (66, 70)], words - head)
        if kind == 2 and words >= head + 6 and rng.random() < 0.3:
            target, room = rng.choice(starts)
            memory.put(place + head + 5, HEAP + target * word)
            memory.data[target * word : target * word + 3] = bytes([max(room * 7 // 8 - rng.randrange(4), 0), rng.randrange(4), 0])
        if kind in (1, 4) and words >= head:
            target, _ = rng.choice(starts)
            prefix = rng.choice([1, 2, 3, 4, 9, 16])
            memory.put(place + head - (4 if kind == 1 else 3), HEAP + (target + prefix) * word - rng.randrange(2))
            if rng.random() < 0.8:
                memory.data[(target + prefix) * word - 1] = prefix * word
    return memory


def put_deque(rng: random.Random, memory: Memory, place: int, chunks: list[int], room: int) -> None:
    """Write the fields of a deque after its count and type, mostly intact, with spare blocks."""
    if len(chunks) < 4:
        return
    first, last = rng.randrange(66), rng.randrange(66)
    one, other, *spare = rng.sample(chunks, 4)
    items = last + 1 - first if rng.random() < 0.4 else 64 * rng.randrange(1, 4) + last + 1 - first
    fields = [max(items + rng.choice([0, 0, 0, 1]), 0), one, one if 0 <= items < 64 else other, first, last, 0, 0]
    memory.put(place + 2, *fields)
    if room >= 26:
        memory.put(place + 9, rng.choice([0, 1, 2, 17]), *spare)


@given(seed=st.integers(0, 2**32 - 1), arch=ARCHES, free_threaded=st.booleans())
@settings(max_examples=graphs.share(120))
def test_both_engines_agree(seed: int, arch: Arch, free_threaded: bool) -> None:
    rng = random.Random(seed)
    memory = random_memory(rng, arch, 16 if free_threaded else 0)
    cuts = sorted(place * arch.word for place in rng.sample(range(1, 1200), rng.randrange(4)))
    kinds = rng.choice([KINDS, OLD_KINDS])
    shift, buffers = 16 if free_threaded else 0, rng.choice([NO_BUFFERS, RANDOM_BUFFERS])
    native, pure = (find_unused(engine(arch), memory, shift, cuts, kinds, buffers) for engine in (graphs.native, graphs.pure))
    assert native == pure


def test_random_memory_has_what_is_compared() -> None:
    for arch in graphs.ARCHES:
        for shift in (0, 16):
            found = [find_unused(graphs.native(arch), random_memory(random.Random(seed), arch, shift), shift, []) for seed in range(60)]
            assert sum(map(bool, (mask for one in found for mask in one["masks"]))) > 15
            assert any(one["rest"] for one in found)
            assert all(any(rows for one in found for rows in one["references"][with_object::2]) for with_object in (0, 1))
            assert any(any(one["immortal"]) for one in found) == bool(shift)


ENGINES = [graphs.native, graphs.pure]


def make_list(arch: Arch, room: int, items: int) -> Memory:
    """Return a list and its storage. All words of the storage refer to the list."""
    memory, word = Memory(arch, 256), arch.word
    start = memory.block(0, 8)
    memory.block(16, room)
    memory.put(0, 0, 0, 1, LISTS, items, HEAP + 16 * word, room)
    memory.put(16, *[start + 2 * word] * room)
    return memory


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_items_of_a_list(engine: Any, arch: Arch) -> None:
    found = find_unused(engine(arch), make_list(arch, 10, 3), 0, [])
    assert found["masks"] == [0, (1 << 64) - 8]
    long = find_unused(engine(arch), make_list(arch, 200, LAST_WORD), 0, [])
    end = HEAP + 216 * arch.word
    assert (long["masks"], long["rest"]) == ([0, 0], [(HEAP + (16 + LAST_WORD) * arch.word, end)])
    full = find_unused(engine(arch), make_list(arch, 10, 10), 0, [])
    assert full["masks"] == [0, 0]
    emptied = make_list(arch, 4, 0)
    emptied.put(6, 0)  # the capacity is 0
    assert find_unused(engine(arch), emptied, 0, [])["masks"] == [0, (1 << 64) - 1]
    emptied.put(2, 0)  # the reference count is 0: the list was freed
    assert find_unused(engine(arch), emptied, 0, [])["masks"] == [0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_that_is_no_storage(engine: Any) -> None:
    """After a list was freed, its storage belongs to another object. The words of the storage are references."""
    arch = graphs.ARCHES[0]
    memory = make_list(arch, 10, 3)
    memory.put(17, HEAP + arch.word)  # no object
    assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, 0]
    memory = make_list(arch, 10, 3)
    memory.put(6, 4)  # much smaller than the block
    assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, 0]
    memory = make_list(arch, 10, 3)
    memory.block(100, 8)
    memory.put(100, 0, 0, 1, LISTS, 7, HEAP + 16 * arch.word, 10)  # has more items in the same storage
    assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, (1 << 64) - (1 << 7), 0]
    memory = make_list(arch, 10, 3)
    memory.put(16, 1, PLAIN)  # an object
    found = find_unused(engine(arch), memory, 0, [])
    assert (found["found"], found["masks"]) == ([0, 2], [0, 0])


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_items_of_a_deque(engine: Any, arch: Arch) -> None:
    """Three blocks: the first has items from number 60 on, the last has items up to number 4. A spare block has no items."""
    memory, word = Memory(arch, 400), arch.word
    start = memory.block(0, 40)
    chunks = [memory.block(50 + 70 * number, 66) for number in range(4)]
    memory.put(2, 1, DEQUES, 4 + 64 + 5, chunks[0], chunks[2], 60, 4, 0, 0, 1, chunks[3])
    for number in range(4):
        memory.put(50 + 70 * number, *[start + 2 * word] * 66)
    found = find_unused(engine(arch), memory, 0, [])
    (first, _, last, spare) = chunks
    assert found["rest"] == [(first, first + 61 * word), (last + 6 * word, last + 66 * word), (spare, spare + 66 * word)]
    memory.put(4, 4 + 64 + 6)  # one item more than the blocks have
    assert find_unused(engine(arch), memory, 0, [])["rest"] == []
    memory.put(4, 5, chunks[1], chunks[1], 10, 14)
    at = chunks[1]
    found = find_unused(engine(arch), memory, 0, [])
    assert found["rest"] == [(at, at + 11 * word), (at + 16 * word, at + 66 * word), (spare, spare + 66 * word)]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_word_after_values(engine: Any, arch: Arch) -> None:
    """The last word of a block of values is a reference only if it is a value in use, whose number is in the part before the values."""
    memory, word = Memory(arch, 200), arch.word
    start, values = memory.block(0, 8), memory.block(40, 12)
    memory.put(0, values + 2 * word, 0, 0, 0, 1, OWNERS)
    every, last = (1 << 64) - (1 << 11), 40 + 11
    for value, numbers, mask in (
        (0, [], 3),
        (start, [], every | 3),
        (start, [0, 3], every | 3),
        (start, [0, 9], 3),
        (start + word, [1], every | 3),
        (start, [9], 3),
        (PLAIN, [], 3),
    ):
        memory.put(last, value)
        ends = bytes([*reversed(numbers), len(numbers), 2 * word])
        memory.data[42 * word - len(ends) : 42 * word] = ends
        assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, mask], (hex(value), numbers)
    memory.data[42 * word - 2] = 200  # more numbers than fit
    memory.put(last, start)
    assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, 3]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_a_dictionary(engine: Any, arch: Arch) -> None:
    """In CPython 3.13, eight values follow a word with their number. The upper half of this word, and words after the values, are
    unused."""
    memory, word = Memory(arch, 200), arch.word
    start, values = memory.block(0, 8), memory.block(40, 9 + 8 // word)
    memory.put(0, 1, PLAIN, 3, 0, 0, values)
    memory.put(40, *[start] * (9 + 8 // word))
    every = (1 << 64) - (1 << 9) | 1
    for head, mask in (
        (bytes([8, 3, 0]), every),
        (bytes([8, 9, 0]), 0),  # more values in use than there are
        (bytes([8, 3, 1]), 0),  # the values are in an object
        (bytes([9, 3, 0]), 0),  # they do not fit
        (bytes([1, 1, 0]), 0),  # much smaller than the block
        (bytes([0, 0, 0]), 0),
    ):
        memory.data[40 * word : 40 * word + 3] = head
        assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, mask], head
    memory.data[40 * word : 40 * word + 3] = bytes([8, 3, 0])
    memory.put(5, values + word)
    assert find_unused(engine(arch), memory, 0, [])["masks"] == [0, 0]
    for words, mask in ((6, (1 << 64) - (1 << 5)), (10, 0), (22, (1 << 64) - (1 << 21)), (8, 0)):
        memory = Memory(arch, 200)
        memory.block(0, 8)
        memory.put(0, 1, PLAIN, 3, 0, 0, memory.block(40, words))
        assert find_unused(engine(arch), memory, 0, [], OLD_KINDS)["masks"] == [0, mask], words


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_words_after_the_keys_of_a_dictionary(engine: Any, arch: Arch) -> None:
    """The keys have eight slots of one byte, and five entries that consist of a string and a value. Later words are unused."""
    memory, word = Memory(arch, 200), arch.word
    start, keys = memory.block(0, 8), memory.block(40, 16 + 8 // word)
    end = 4 + 8 // word + 10
    memory.put(0, 1, PLAIN, 3, 0, keys)
    memory.put(40, *[start] * (end + 2))
    memory.data[41 * word : 41 * word + 3] = bytes([3, 3, 1])
    assert find_unused(engine(arch), memory, 0, [])["masks"][1] == (1 << 64) - (1 << end)
    memory.data[41 * word + 2] = 0  # entries of three words: they do not fit
    assert find_unused(engine(arch), memory, 0, [])["masks"][1] == 0
    memory.data[41 * word + 2] = 1
    memory.put(4, 0)
    assert find_unused(engine(arch), memory, 0, [])["masks"][1] == 0
    for place in (108, 109, 110):  # keys that the objects of a type share
        memory = Memory(arch, 300)
        start, keys = memory.block(0, 120), memory.block(200, 16 + 8 // word)
        memory.put(0, 1, PLAIN)
        memory.put(place, keys)
        memory.put(200, *[start] * (end + 2))
        memory.data[201 * word : 201 * word + 3] = bytes([3, 3, 1])
        assert find_unused(engine(arch), memory, 0, [])["masks"][1] == (1 << 64) - (1 << end)


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_hashes(engine: Any, arch: Arch) -> None:
    """Hashes of the keys of dictionaries and sets are not references, even if they are addresses in blocks. Keys and
    values are references."""
    word = arch.word

    def find_hashes(owner: list[int], contents: list[int], head: bytes = b"", kind: int = PLAIN) -> list[int]:
        memory = Memory(arch, 200)
        memory.block(0, 8)
        memory.block(40, len(contents))
        memory.put(0, 1, kind, *owner)
        memory.put(40, *contents)
        memory.data[41 * word : 41 * word + len(head)] = head
        bounds = find_unused(engine(arch), memory, 0, [])["rest"]
        return [(bound - HEAP) // word - 40 for part in bounds for bound in part]

    table, slots = HEAP + 40 * word, [0] * (8 // word)
    entries = [HEAP, HEAP, HEAP, 5, HEAP, HEAP, *[0] * 9]
    assert find_hashes([3, 0, table], [1, 0, 0, 0, *slots, *entries], bytes([3, 3, 0])) == [4 + len(slots), 5 + len(slots)]
    assert (
        find_hashes([3, 0, table], [1, 0, 0, 0, *slots, *[HEAP] * 10], bytes([3, 3, 1])) == []
    )  # only strings as keys: no hashes are stored
    assert find_hashes([3, 0, table], [1, 8, 0x9D0000, 0, 2, *slots, *entries]) == [5 + len(slots), 6 + len(slots)]  # 3.9 and 3.10
    assert find_hashes([3, 0, table], [1, 7, 0x9D0000, 0, 2, *slots, *entries]) == []
    items = [HEAP, HEAP, HEAP, 5, *[0] * 10, HEAP, HEAP]
    assert find_hashes([2, 2, 7, table], items, kind=SETS) == [1, 2, 15, 16]
    assert find_hashes([2, 2, 7, table], [*items, HEAP, 5], kind=SETS) == [1, 2, 15, 16, 16, 18]  # the block is larger than the table
    assert find_hashes([2, 2, 7, table], [*items, 5], kind=SETS) == [1, 2, 15, 16]
    assert find_hashes([2, 2, 8, table], [*items, HEAP, HEAP], kind=SETS) == []  # 9 entries: no table has this number
    assert find_hashes([2, 2, 15, table], items, kind=SETS) == []  # the block is too small


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_buffers(engine: Any, arch: Arch) -> None:
    """The buffer has ten words. `fields` are the words 2 to 5 of its owner, which refers to the buffer in the word `place`."""
    word, at = arch.word, HEAP + 40 * arch.word

    def find_first(contents: int, place: int, *fields: int, head: Sequence[int] = ()) -> int:
        """Return the number of the first unused word, -1 if all words are references."""
        memory = Memory(arch, 200)
        start = memory.block(0, 8)
        memory.block(40, 10)
        memory.put(0, 1, PLAIN, *fields)
        memory.put(40, *head, *[start] * (10 - len(head)))
        mask = find_unused(engine(arch), memory, 0, [], bytes(6), [*NO_BUFFERS[:4], place | contents << 8, 0, *NO_BUFFERS[6:]])["masks"][1]
        assert mask in (0, (1 << 64) - (mask & -mask))
        return mask.bit_length() and (mask & -mask).bit_length() - 1 if mask else -1

    assert find_first(NO_POINTERS, 2, at, 0, 0, 0) == 0
    assert find_first(NO_POINTERS, 2, at + word, 0, 0, 0) == -1  # not the start of a block
    assert find_first(ARRAY, 3, 3, at, 10, 0) == 3
    assert find_first(ARRAY, 3, 5, at, 10 * word // 2, 0) == -(-10 // word)  # items of two bytes
    assert find_first(ARRAY, 3, 11, at, 10, 0) == -1
    assert find_first(ARRAY, 3, 3, at, 10 * word + 1, 0) == -1
    assert find_first(BYTES, 4, word + 1, 10 * word, at, at + word) == 3
    assert find_first(BYTES, 4, word + 1, 10 * word, at, at - word * 3) == -1
    assert find_first(BYTES, 4, word + 1, 11 * word, at, at) == -1
    assert find_first(POINTERS, 3, 4, at, 0, 0) == 4
    assert find_first(POINTERS, 3, 11, at, 0, 0) == -1
    assert find_first(CHILDREN, 5, 0, 0, 0, at, head=(0, 2, 4, at + 4 * word)) == 6
    assert find_first(CHILDREN, 5, 0, 0, 0, at, head=(0, 2, 4, at)) == 4
    assert find_first(CHILDREN, 5, 0, 0, 0, at, head=(0, 5, 4, at + 4 * word)) == -1


@pytest.mark.parametrize("engine", ENGINES)
def test_strings_that_look_like_values(engine: Any) -> None:
    """The last byte of a hash may be 32. The bytes before it then look like the order of values only by chance."""
    arch = graphs.ARCHES[0]
    for order, pattern in ((b"\0", 0), (b"\2\0\1\3", 0), (b"\2\2\2", LEAF), (b"\x1e\1", LEAF), (b"\x1f", LEAF)):
        memory = Memory(arch, 200)
        memory.block(0, 8)
        memory.put(0, 1, PLAIN, 0, 0, 0)
        memory.data[31 - len(order) : 32] = order + b" "
        blocks = memory.built(engine(arch))
        tally = ObjectTally.of(blocks, TYPES, TypeColumns(bytes(6), bytes(6), bytes([1] * 6), bytes(6)), PROGRAM)
        count_objects(engine(arch), blocks, graphs.piece(HEAP, bytes(memory.data)), tally)
        assert tally.patterns[0] == pattern, order


def test_no_lists_no_pass() -> None:
    engine = graphs.native()
    blocks = make_list(graphs.ARCHES[0], 10, 3).built(engine)
    tally = make_tally(blocks, graphs.ARCHES[0], 0)
    assert (
        unused_storage(engine, blocks, lambda: pytest.fail("read memory"), tally, Storage(bytes(6), array("I", NO_BUFFERS)), lambda mask: 1)
        == []
    )
    assert tally.found == array("I", [NO_OBJECT] * 2)
