"""Test which words of the JVM's own memory are stale: free chunks of arenas, monitors that no thread uses, words of threads,
interned strings, options of the launcher, and blocks with handles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from heaps import ListAllocator, Listed, session
from jvmimage import OBJECTS, STATICS, THREADS, Image

from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm import chunk_pools, hash_tables, object_monitors, symbols
from findleaks.runtimes.jvm.chunk_pools import free_chunks
from findleaks.runtimes.jvm.hash_tables import HashTables
from findleaks.runtimes.jvm.interned_strings import list_string_words
from findleaks.runtimes.jvm.object_monitors import idle_monitors
from findleaks.runtimes.jvm.oop_storages import list_storage_blocks
from findleaks.runtimes.jvm.stale_words import list_stale_words
from findleaks.runtimes.jvm.symbols import find_end_of_text, list_stale_ends
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.thread_words import words_without_objects
from findleaks.target.base import Range, Symbol

CHUNKS = [OBJECTS + 0xE000, OBJECTS + 0xE400, OBJECTS + 0xE800]
BLOCK = OBJECTS + 0xA000  # the block of monitors
POOLS, VARIABLES = OBJECTS + 0xD000, STATICS + 0x6000
SIZES = [size - 40 for size in (256, 1 << 10, 10 << 10, 32 << 10)]
MONITOR = 64  # bytes of a monitor: _object, _owner, _count, _waiters, FreeNext


def read_tables(image: Image) -> Tables:
    target = image.target()
    return Tables(target, target.modules()[0])


def find_chunks(image: Image, polls: int = 1 << 20) -> Sequence[Range]:
    """Return the free chunks of a process. Each pool is in a block of malloc. `polls`: the number of checks before Ctrl-C."""
    target = image.target()
    pools = [Listed(POOLS + 64 * number, 40, State.IN_USE) for number in range(4)]
    given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, pools)])
    target.stop_after(polls)
    return list(free_chunks(Tables(target, target.modules()[0]), given.engine, [Range(STATICS, STATICS + 0x8000)], given.directory))


def pools(form: str, sizes: Sequence[int]) -> Image:
    """Return a process with two free chunks in the pool of the smallest size. `form`: "pointers" or "array"."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    first, second, _ = CHUNKS
    length = SIZES[0]
    image.words(first, second, length)
    image.words(second, 0, length)
    firsts = [first if size == min(sizes) else 0 for size in sizes]
    if form == "pointers":
        for number, (chunk, size) in enumerate(zip(firsts, sizes)):
            image.words(POOLS + 64 * number, chunk, 2, 5, size + 16)
            image.words(VARIABLES + 8 * number, POOLS + 64 * number)
    else:
        image.words(VARIABLES, *(word for pair in zip(firsts, sizes) for word in pair))
    return image


@pytest.mark.parametrize("form", ["pointers", "array"])
@pytest.mark.parametrize("step", [1, -1])
def test_free_chunks(form: str, step: int) -> None:
    parts = [Range(chunk + 16, chunk + 16 + SIZES[0]) for chunk in CHUNKS[:2]]
    assert find_chunks(pools(form, SIZES[::step])) == parts
    # These sizes of pools are not the sizes of an arena's chunks.
    assert find_chunks(pools(form, [size * 2 for size in SIZES])) == []
    assert find_chunks(pools(form, [*SIZES[:3], SIZES[3] + 8])) == []


def test_damaged_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = CHUNKS
    image = pools("array", SIZES)
    image.words(second, first, SIZES[0])  # a cyclic list
    assert len(find_chunks(image)) == 2
    for number in range(1, 9):  # eight more pools that refer to the same chunks
        image.words(VARIABLES + 0x100 * number, *(word for size in SIZES for word in (first, size)))
    assert len(find_chunks(image)) == 2
    image.words(second, third, SIZES[0])
    image.words(third, 0, SIZES[0] + 8)  # a chunk of another length
    assert len(find_chunks(image)) == 2
    image.words(second, second + 4, SIZES[0])
    assert len(find_chunks(image)) == 2
    monkeypatch.setattr(chunk_pools, "_CHECKED", 1)
    with pytest.raises(Interrupted):
        find_chunks(image, 0)


ENTRIES, VICTIM, TABLE = OBJECTS + 0xA100, OBJECTS + 0xC000, OBJECTS + 0xA040
STALE = VICTIM & ~0xFFFF  # the upper half of an address


def hash_table(kind: str) -> tuple[Image, list[Listed]]:
    """Return a process with a table of 16 buckets and 5 entries, and its blocks. All hash codes look like addresses in the block VICTIM."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    hashes = [(VICTIM & 0xFFFF) + one for one in (0x40, 0x41, 0x50, 0x62, 0x7F)]
    places = [ENTRIES + 64 * number for number in range(len(hashes))]
    chains: dict[int, list[int]] = {}
    for place, hashed in zip(places, hashes):
        chains.setdefault((STALE | hashed) % (1 << 32) % 16, []).append(place)
    for chain in chains.values():
        for place, following in zip(chain, [*chain[1:], 0]):
            words = (following, VICTIM, 0) if kind == "basic" else (VICTIM, 0, following)
            image.words(place, STALE | hashes[places.index(place)], *words)
    buckets = TABLE if kind == "resource" else TABLE + 0x1000
    image.words(buckets, *(chains.get(number, [0])[0] for number in range(16)), len(hashes))
    found = [*(Listed(place, 40, State.IN_USE) for place in places), Listed(buckets, 136, State.IN_USE)]
    if kind == "basic":
        image.sizes["BasicHashtable<mtInternal>"] = 32
        image.fields.update({("BasicHashtable<mtInternal>", "_table_size"): 0, ("BasicHashtable<mtInternal>", "_buckets"): 8})
        image.words(TABLE, 16, buckets)
        found.append(Listed(TABLE, 40, State.IN_USE))
    image.words(VARIABLES, TABLE)
    return image, [*found, Listed(VICTIM, 0x400, State.IN_USE)]


def list_found(image: Image, blocks: Sequence[Listed]) -> tuple[list[int], list[Range]]:
    """Return the words that contain hash codes, and all words that are not references."""
    target = image.target()
    given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, sorted(blocks))])
    tables, module = Tables(target, target.modules()[0]), target.modules()[0]
    words = HashTables(tables, given.engine, given.directory).list_hash_words([Range(STATICS, STATICS + 0x8000)])
    return sorted(words), list_stale_words(tables, given.engine, given.directory, module)


@pytest.mark.parametrize("kind", ["basic", "resource"])
def test_words_with_hash_codes(kind: str) -> None:
    """A word that contains the start of a block counts as a reference. The hash code of the first entry is changed to another hash code of
    the same bucket."""
    image, blocks = hash_table(kind)
    places = [ENTRIES + 64 * number for number in range(5)]
    assert list_found(image, blocks) == (places, [Range(place, place + 8) for place in places])
    image.words(ENTRIES, VICTIM)
    assert list_found(image, blocks) == (places, [Range(place, place + 8) for place in places[1:]])
    image.words(ENTRIES, STALE | 0x41)  # with a hash code of another bucket, the memory is not a table of the JVM
    assert list_found(image, blocks) == ([], [])
    image.words(ENTRIES, VICTIM, *((places[0], 0, 0) if kind == "basic" else (0, 0, places[0])))  # a cyclic list
    assert list_found(image, blocks) == ([], [])


def test_damaged_hash_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a table is not a multiple of a word, or many tables refer to one array of buckets."""
    image, blocks = hash_table("basic")
    image.sizes["BasicHashtable<mtInternal>"] = 25
    assert list_found(image, blocks) == ([], [])
    image, blocks = hash_table("basic")
    copies = [TABLE - 0x1000 + 64 * number for number in range(40)]
    for place in copies:
        image.words(place, 16, TABLE + 0x1000)
    blocks += [Listed(place, 40, State.IN_USE) for place in copies]
    assert len(list_found(image, blocks)[0]) == 41 * 5
    monkeypatch.setattr(hash_tables, "_MOST_WORDS", 10 * (16 + 5))
    assert 0 < len(list_found(image, blocks)[0]) <= 50


def test_words_of_arena_chunks() -> None:
    """Words that refer to the start of a block, or into another chunk, count as references."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    first, second = OBJECTS + 0xA000, OBJECTS + 0xA400
    length = (1 << 10) - 40
    image.words(first, second, length, VICTIM + 8, VICTIM, VICTIM + 16, second + 64, VICTIM + 0x48)
    image.words(second, 0, length, 0, VICTIM + 0x300)
    blocks = [Listed(first, 1000, State.IN_USE), Listed(second, 1000, State.IN_USE), Listed(VICTIM, 0x400, State.IN_USE)]
    assert list_found(image, blocks)[1] == [Range(place, place + 8) for place in (first + 16, first + 48, second + 24)]
    image.words(first + 8, length + 8)  # the memory is not a chunk
    assert list_found(image, blocks)[1] == [Range(second + 24, second + 32)]


def monitors() -> Image:
    """Return a process with one block of monitors."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.sizes["ObjectMonitor"] = MONITOR
    for number, name in enumerate(("_object", "_owner", "_count", "_waiters", "FreeNext")):
        image.fields["ObjectMonitor", name] = 8 * number
    image.statics["ObjectSynchronizer", "gBlockList"] = 0x7000
    image.words(STATICS + 0x7000, BLOCK)
    return image


def test_monitors_that_no_thread_uses() -> None:
    image = monitors()
    image.words(BLOCK, 1, 0, 0, 0, 0)  # the first monitor of a block has no object
    for number, words in enumerate([(9, 0, 0, 0), (9, 7, 0, 0), (9, 0, 1, 0), (9, 0, 0, 1), (0, 0, 0, 0), (9, 0, 0, 0)], 1):
        image.words(BLOCK + MONITOR * number, *words)
    assert list(idle_monitors(read_tables(image))) == [BLOCK + MONITOR, BLOCK + 6 * MONITOR]


def test_damaged_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_monitors, "_CHECKED", 1)
    image = monitors()
    image.words(BLOCK, 1, 0, 0, 0, BLOCK)  # a cyclic list
    image.words(BLOCK + MONITOR, 9)
    assert list(idle_monitors(read_tables(image))) == [BLOCK + MONITOR]
    image.words(BLOCK, 1, 0, 0, 0, 8)  # an unreadable block
    assert list(idle_monitors(read_tables(image))) == [BLOCK + MONITOR]
    tables = read_tables(image)
    tables.target.stop_after(0)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        list(idle_monitors(tables))
    image.sizes["ObjectMonitor"] = 24  # smaller than its fields
    assert list(idle_monitors(read_tables(image))) == []
    del image.statics["ObjectSynchronizer", "gBlockList"]  # removed in JDK 17
    assert list(idle_monitors(read_tables(image))) == []


def test_words_of_threads() -> None:
    image = Image("Serial", [(0, 0, 0)] * 4, [(0, 0, 0)])
    thread = THREADS + 0x1000
    image.sizes.update({"Thread": 0x200, "JavaThread": 0x400})
    image.fields.update({("ThreadShadow", "_pending_exception"): 8, ("JavaThread", "_lock_stack"): 0x300})
    image.fields.update({("LockStack", "_top"): 0, ("LockStack", "_base[0]"): 8})
    common = Range(thread + 16, thread + 0x200)
    image.words(thread + 0x300, 0x300 + 8 + 16)
    assert list(words_without_objects(read_tables(image))) == [common, Range(thread + 0x318, thread + 0x348)]
    for top in (0, 0x300, 0x348, 0x400):  # a top outside of the stack, or no unused words
        image.words(thread + 0x300, top)
        assert list(words_without_objects(read_tables(image))) == [common]


@pytest.mark.parametrize(("length", "body", "first"), [(4, 6, 8), (0, 8, 0), (4, 6, 24)])
def test_symbols(length: int, body: int, first: int) -> None:
    """The last word of the block is after the text, and is ignored. If the text does not explain the size of the block, or contains a zero
    byte, the block may contain references."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.fields.update({("Symbol", "_length"): length, ("Symbol", "_body"): body})
    text = b"java/nio/HeapCharBuffer.class"
    used = -(-(first + body + len(text)) // 8) * 8
    rows = [(len(text), text), (len(text) + 30, text), (len(text) - 16, text), (len(text), text.replace(b"/", b"\0")), (0, text)]
    places = [BLOCK + 128 * number for number in range(len(rows))]
    for place, (count, content) in zip(places, rows):
        at = place - OBJECTS
        image.memory[OBJECTS][at + first + length : at + first + length + 2] = count.to_bytes(2, "little")
        image.memory[OBJECTS][at + first + body : at + first + body + len(content)] = content
        image.words(place + used, OBJECTS)
    tables = read_tables(image)
    end = places[0] + first + body + len(text)
    assert [find_end_of_text(tables, place, used + 8) for place in places] == [end, 0, 0, 0, 0]
    assert not find_end_of_text(tables, places[0], used + 24) and not find_end_of_text(tables, 8, used + 8)


@pytest.mark.parametrize("pointer", [0x7F41FF424344, 0x7F4100424344])
def test_number_and_pointer_are_no_symbol(pointer: int) -> None:
    """A block of 24 bytes has a number, a pointer and a reference. In JDK 8, the number could be the length of a short text."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.fields.update({("Symbol", "_length"): 0, ("Symbol", "_body"): 8})
    image.words(BLOCK, 4, pointer, OBJECTS)
    assert not find_end_of_text(read_tables(image), BLOCK, 24)


def test_reference_is_not_after_text() -> None:
    """The low bytes of a reference are characters. The reference is not after this text."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.fields.update({("Symbol", "_length"): 0, ("Symbol", "_body"): 8})
    image.words(BLOCK, 4, 0x41424344, 0)
    assert find_end_of_text(read_tables(image), BLOCK, 24) == BLOCK + 12


def test_last_words_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of 24 bytes has a word that looks like an address. It is stale if it contains the end of a text that began in the word
    before, or follows the text. The metaspace does not refer to the fifth block."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.fields.update({("Symbol", "_length"): 4, ("Symbol", "_body[0]"): 6})
    address = (OBJECTS + 0x6161).to_bytes(8, "little")
    contents = [
        b"\1\0\0\0\4\0AB" + address,
        b"\1\0\0\0\2\0AB" + address,
        b"\1\0\0\0\0\0\0\0" + address,  # a number, followed by a reference
        b"\1\0\0\0\4\0A\0" + address,  # the content is not text
        b"\1\0\0\0\4\0AB" + address,
        b"\1\0\0\0\x0c\0ABCDEFGHIJ" + address,
    ]
    places = [BLOCK + 64 * number for number in range(len(contents))]
    for place, content in zip(places, contents):
        image.memory[OBJECTS][place - OBJECTS : place - OBJECTS + len(content)] = content
    metaspace = STATICS + 0x6000
    image.words(metaspace, *(place for place in places if place != places[4]))
    monkeypatch.setattr(symbols, "metaspace_nodes", lambda tables: [Range(metaspace, metaspace + 64)])
    target = image.target()
    given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, [Listed(place, 24) for place in places])])
    tables = Tables(target, target.modules()[0])
    stale = [places[0] + 8, places[1] + 8, places[5] + 16]
    assert sorted(list_stale_ends(tables, given.engine, given.directory)) == [Range(place, place + 8) for place in stale]
    target.stop_after(0)
    with pytest.raises(Interrupted):
        list(list_stale_ends(tables, given.engine, given.directory))


def string_table(*links: int) -> Image:
    """Return a process with JDK 8's table of interned strings. `links`: the first entries of its buckets."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.fields.update({("BasicHashtable<mtInternal>", "_table_size"): 0, ("BasicHashtable<mtInternal>", "_buckets"): 8})
    image.fields["Flag", "flags"] = 0  # a field that only JDK 8 has
    image.statics["StringTable", "_the_table"] = 0x7000
    image.words(STATICS + 0x7000, TABLE)
    image.words(TABLE, len(links), TABLE + 0x1000)
    image.words(TABLE + 0x1000, *links)
    return image


def list_strings(image: Image, polls: int = 1 << 20) -> list[int]:
    target = image.target()
    given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, [])])
    target.stop_after(polls)
    return list_string_words(Tables(target, target.modules()[0]), given.engine).tolist()


def test_interned_strings() -> None:
    image = string_table(0, ENTRIES, ENTRIES + 0x80)
    image.words(ENTRIES, 1, (ENTRIES + 0x40) | 1, VICTIM)  # the lowest bit is a flag
    words = [ENTRIES + 0x10, ENTRIES + 0x50, ENTRIES + 0x90]
    assert list_strings(image) == words
    with pytest.raises(Interrupted):
        list_strings(image, 0)
    image.words(ENTRIES + 0x40, 2, ENTRIES)  # a cyclic list, and two lists with the same entries
    image.words(ENTRIES + 0x80, 2, ENTRIES)
    assert list_strings(image) == words
    del image.fields["Flag", "flags"]
    assert list_strings(image) == []


def test_damaged_table_of_interned_strings() -> None:
    """A link may be any number. An unreadable entry refers to no other entry."""
    links = [(1 << 64) - 1, (1 << 64) - 8, 1 << 63, 7, 1, ENTRIES + 4]
    assert all(VICTIM <= place < 1 << 64 for place in list_strings(string_table(*links)))
    image = string_table(ENTRIES)
    image.words(ENTRIES, 1, (1 << 64) - 8)
    assert list_strings(image)[0] == ENTRIES + 16
    for count in (0, (1 << 32) - 1, (1 << 24) + 1, 1 << 20):
        image.words(TABLE, count, TABLE + 0x1000)
        assert list_strings(image) == []


def test_options_of_the_launcher() -> None:
    """The launcher has freed its options, unless the variable refers to the text of an option."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.words(VARIABLES, VICTIM)
    image.words(VICTIM, VICTIM + 0x40)
    image.symbols += [Symbol("options", VICTIM, 8, "libother.so"), Symbol("options", VARIABLES, 8, "libjli.so")]
    for text, found in ((b"-Xmx1g\0", []), (b"\0\0\0\0", [Range(VARIABLES, VARIABLES + 8)])):
        image.memory[OBJECTS][VICTIM + 0x40 - OBJECTS : VICTIM + 0x40 - OBJECTS + len(text)] = text
        target = image.target()
        given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, [])])
        assert list_stale_words(Tables(target, target.modules()[0]), given.engine, given.directory, target.modules()[0]) == found


@pytest.mark.parametrize("header", [0, 16])
def test_blocks_with_handles(header: int) -> None:
    """Handles begin at a multiple of 64, after the start of the block of malloc, or after NMT's header. The other blocks do not refer to
    their start or to a storage, or they have another size."""
    image = Image("Serial", [(0, 0, 0)] * 4, [])
    image.memory[OBJECTS][VICTIM + 0x80 - OBJECTS : VICTIM + 0x8A - OBJECTS] = b"JNI Global"
    image.words(VICTIM, VICTIM + 0x80)
    places = [TABLE + 1024 * number + offset for number, offset in enumerate((0, 48, 16, 32, 0, 0))]
    sizes = [632] * 5 + [1032]
    rows = [(VICTIM, 0), (VICTIM, 0), (VICTIM, 8), (VICTIM + 8, 0), (VICTIM + 4, 0), (VICTIM, 0)]
    for place, (owner, wrong) in zip(places, rows):
        image.words(place + header + -(place + header) % 64 + 8 * 65, owner, place + header + wrong)
    target = image.target()
    blocks = [Listed(place, size, State.IN_USE) for place, size in zip(places, sizes)]
    given = session(target, [ListAllocator(OBJECTS, OBJECTS + 0x10000, blocks)])
    tables = Tables(target, target.modules()[0])
    assert list(list_storage_blocks(tables, given.engine, given.directory.blocks)) == places[:2]
    target.stop_after(0)
    with pytest.raises(Interrupted):
        list(list_storage_blocks(tables, given.engine, given.directory.blocks))
