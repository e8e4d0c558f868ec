"""Both engines decode references of ZGC as its barriers do, and read and check tables of moved objects."""

from __future__ import annotations

import random
import struct
from array import array

import graphs
import pytest
from heaps import session
from jvmimage import COLLECTED, OBJECTS, STATICS, Image

from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.engine import FIXED, NO_CLASS, ClassTable, HeaderLayout, ObjectWalk, ReferenceSearch
from findleaks.runtimes.jvm.heap_dump.records import RecordEncoder
from findleaks.runtimes.jvm.instance import HotSpot
from findleaks.runtimes.jvm.references import ABOVE, BELOW, NO_COLORS, NONE, Colors, Moves, References
from findleaks.runtimes.jvm.relocation import Relocation
from findleaks.target.arch import X86_64
from findleaks.target.ranges import merge_ranges

HEAP = 1 << 42
HEADER = HeaderLayout(8, 4, 0, 12, 8)
COUNT, SIZE = 40, 64
GRANULE = 1 << 21


def make_moves(state: random.Random, starts: list[int]) -> Moves:
    """Return for some of the objects that they were moved to their present addresses."""
    before = sorted(state.sample(range(HEAP + (1 << 30), HEAP + (1 << 31), 8), len(starts) // 2))
    return Moves(array("Q", before), array("Q", state.sample(starts, len(before))))


def above(address: int, bit: int, finalizable: bool = False) -> int:
    return (address & HEAP - 1) | 1 << 42 + bit | finalizable << 45


def below(address: int, number: int, rest: int = 0) -> int:
    """`rest`: the bits of a color for marking and remembering."""
    return address << 13 + number | 1 << 12 + number | rest << 4


def test_references_without_generations() -> None:
    """References with the previous mark bit were written before objects were moved."""
    young = Moves(array("Q", [HEAP | 0x100]), array("Q", [HEAP | 0x900]))
    form = References(8, HEAP, 0, Colors(ABOVE, HEAP - 1, 1 << 42 | 4 << 42, young))
    assert [form.decode(above(0x100, bit)) - HEAP for bit in range(3)] == [0x100, 0x900, 0x100]
    assert form.decode(above(0x200, 1, finalizable=True)) == HEAP | 0x200
    assert form.decode(above(0, 0)) == HEAP
    assert [form.decode(value) for value in (0, 0x100, 3 << 42, 8 << 42, 1 << 46 | 1 << 42)] == [0] * 5
    assert form.locate(above(0x100, 2)) == HEAP | 0x100 and form.locate(0x7F) == 0x7F


def test_references_with_generations() -> None:
    """The number in a reference has one bit for each generation. The bit tells whether objects of this generation were moved later."""
    young = Moves(array("Q", [HEAP | 0x100]), array("Q", [HEAP | 0x900]))
    old = Moves(array("Q", [HEAP | 0x100, HEAP | 0x200]), array("Q", [HEAP | 0xA00, HEAP | 0xB00]))
    for current in range(4):
        form = References(8, HEAP, 0, Colors(BELOW, HEAP - 1, current, young, old))
        address = HEAP | 0x100
        assert form.decode(below(address, current)) == address
        assert form.decode(below(address, current ^ 1)) == HEAP | 0x900
        assert form.decode(below(address, current ^ 2)) == HEAP | 0xA00
        assert form.decode(below(address, current ^ 3)) == HEAP | 0x900
        assert form.decode(below(address, current ^ 3, rest=3)) == HEAP | 0xA00
        assert form.decode(below(HEAP | 0x200, current ^ 3)) == HEAP | 0xB00
        assert form.decode(below(HEAP | 0x300, current ^ 3)) == HEAP | 0x300
        damaged = (0, below(address, 0) | 1, below(address, 0) | 1 << 13, address, below(3 * HEAP, 2), 0xFFFF, 1 << 12)
        assert [form.decode(value) for value in damaged] == [0] * len(damaged)
        assert set(form.targets(address)) == {address, HEAP | 0x900, HEAP | 0xA00}
        assert form.targets(below(address, current)) == (address,) and form.targets(0x7FFF_0000_1234) == ()


@pytest.mark.parametrize(("size", "base", "shift"), [(4, HEAP, 3), (8, 0, 0)])
def test_references_to_objects_that_shenandoah_moved(size: int, base: int, shift: int) -> None:
    """References without colors, and words of native memory, may contain the previous address."""
    moves = Moves(array("Q", [HEAP | 0x100]), array("Q", [HEAP | 0x900]))
    form = References(size, base, shift, NO_COLORS._replace(young=moves))
    assert [form.decode(HEAP + at - base >> shift) - HEAP for at in (0x100, 0x108, 0x900)] == [0x900, 0x108, 0x900]
    assert [*form.targets(HEAP | 0x100), *form.targets(HEAP | 0x108)] == [HEAP | 0x900, HEAP | 0x108] and form.decode(0) == 0


@pytest.mark.parametrize("place", [ABOVE, BELOW, NONE])
def test_engines_agree(place: int) -> None:
    for seed in range(5):
        state = random.Random(seed)
        starts = [HEAP + SIZE * number for number in range(COUNT)]
        colors = Colors(
            place,
            HEAP - 1,
            state.choice([5, 6]) << 42 if place == ABOVE else seed % 4,
            make_moves(state, starts),
            make_moves(state, starts),
        )
        form = References(8, 0 if place == NONE else HEAP, 0, colors)
        memory = bytearray(COUNT * SIZE)
        for number in range(COUNT):
            struct.pack_into("<I", memory, number * SIZE + 8, 1 + number % 2)
            struct.pack_into("<2I", memory, number * SIZE + 24, 3, state.choice([0, 1, 9]))
            for at in range(32, SIZE, 8):
                address = state.choice([*starts, *colors.young.before, *colors.old.before])
                forms = {BELOW: below(address, state.randrange(4), state.getrandbits(8)), ABOVE: above(address, state.randrange(3))}
                plain = forms.get(place, address)
                value = state.choice([plain, plain, plain, address, 0, plain ^ 1 << state.randrange(64)])
                struct.pack_into("<Q", memory, number * SIZE + at, value)
        found = [scan(engine, form, bytes(memory), starts) for engine in (graphs.pure(), graphs.native())]
        assert found[0] == found[1] and sum(map(len, found[0][0])) > COUNT // 2
        values = b"".join(form.decode(value).to_bytes(8, "big") for (value,) in struct.iter_unpack("<Q", memory))
        assert [one for _, one in found] == [values, values]


def scan(engine: Engine, form: References, memory: bytes, starts: list[int]) -> tuple[list[list[tuple[int, bool]]], bytes]:
    """Return the references of each object, and all words as in a heap dump. Every second object has frames of a virtual thread."""
    known = ClassTable()
    known.add(1, (FIXED, SIZE, 0, 0), array("I", [32, 4]))
    known.add(2, (FIXED, 32, 24, 28), array("I"))
    blocks = engine.blocks(X86_64, 8)
    blocks.append(starts, [SIZE] * len(starts), bytes(len(starts)))
    blocks.seal()
    numbers, none = array("I", [number % 2 for number in range(len(starts))]), array("I", [NO_CLASS] * 2)
    graph, walk = engine.graph(blocks), ObjectWalk(HEADER, form, known)
    ReferenceSearch(walk, numbers, none, array("Q")).run(engine, graph, graphs.piece(starts[0], memory))
    graph.settle()
    values = RecordEncoder(walk, blocks, numbers, 64).encode_values(engine, memory, 2)
    return [graph.references(index) for index in range(len(starts))], values


# -- tables of moved objects

GLOBALS, MASKS, TABLE, PAGES = OBJECTS + 0x2000, OBJECTS + 0x2100, OBJECTS + 0x3000, OBJECTS + 0x3800
ENTRIES = 8


def image(*forwardings: tuple[int, int, list[tuple[int, int]]]) -> Image:
    """Return a process with ZGC without generations. Each forwarding has the granule of its page, a reference count,
    and pairs: the previous index of an object, and its offset now."""
    made = Image("Z", ())
    made.words(COLLECTED + 0x20, 0, 0)
    places = {"ZCollectedHeap": {"_heap": 0x40}, "ZHeap": {"_page_allocator": 0x40, "_forwarding_table": 0x80, "_page_table": 0x90}}
    places["ZPageAllocator"] = {"_max_capacity": 0, "_capacity": 8, "_used": 16}
    places["ZForwarding"] = {"_virtual": 0, "_object_alignment_shift": 16, "_entries": 24, "_ref_count": 32}
    places["ZAttachedArrayForForwarding"] = {"_length": 0}
    made.fields.update({(kind, name): at for kind, fields in places.items() for name, at in fields.items()})
    made.sizes.update({"ZForwarding": 40})
    made.constants.update({"ZGranuleSizeShift": 21})
    made.statics["ZGlobalsForVMStructs", "_instance_p"] = 48
    made.words(STATICS + 48, GLOBALS)
    for at, (name, value) in enumerate({"OffsetMask": HEAP - 1, "GoodMask": 4 << 42, "MetadataMask": 15 << 42}.items()):
        made.fields["ZGlobalsForVMStructs", f"_ZAddress{name}"] = 8 * at
        made.words(GLOBALS + 8 * at, MASKS + 8 * at)
        made.words(MASKS + 8 * at, value)
    made.words(COLLECTED + 0x80, 64 << 20, 8 << 20, 6 << 20)
    made.words(COLLECTED + 0x40 + 0x80, 64, TABLE)
    for number, (granule, count, moved) in enumerate(forwardings):
        at = PAGES + 0x100 * number
        made.words(TABLE + 8 * granule, at)
        made.words(at, granule * GRANULE, (granule + 1) * GRANULE, 3, ENTRIES, count & 0xFFFFFFFF)
        made.words(at + 40, *((before << 46 | now << 1 | 1) for before, now in moved))
    return made


def relocation(made: Image) -> Relocation:
    (runtime,) = session(made.target(), []).runtimes
    assert isinstance(runtime, HotSpot)
    found = runtime._tables.relocation
    assert found is not None
    return found


def test_moved_objects() -> None:
    """Objects on a page that is not released were copied. A page with a negative count is compacted in place."""
    base = 4 << 42
    made = image((5, 0, [(9, 0x100), (2, 0x200)]), (3, 2, [(1, 0x300)]), (7, -1, [(0, 0x400)]))
    found = relocation(made)
    before = [3 * GRANULE + 8, 5 * GRANULE + 16, 5 * GRANULE + 72, 7 * GRANULE]
    assert [one - base for one in found.young.before] == before and found.is_known
    assert [one - base for one in found.young.now] == [0x300, 0x200, 0x100, 0x400]
    assert [one - base for one in found.copies] == before[:1]
    assert found.moving == merge_ranges(found.moving) and [one.start - base for one in found.moving] == [7 * GRANULE]


def jdk11(*pages: tuple[int, int, list[int]], size: int = ENTRIES) -> Image:
    """Return a process with ZGC of JDK 11. Each page has its granule, its number of users, and the entries of its forwarding table."""
    made = image()
    places = {"ZHeap": {"_pagetable": 0x90}, "ZPageTable": {"_map": 0}, "ZAddressRangeMapForPageTable": {"_map": 0}}
    places["ZPage"] = {"_type": 0, "_virtual": 8, "_forwarding": 48}
    made.fields.update({(kind, name): at for kind, fields in places.items() for name, at in fields.items()})
    made.constants.update({"ZPageSizeMinShift": 21, "ZAddressOffsetMask": HEAP - 1})
    made.words(COLLECTED + 0x40 + 0x90, TABLE)
    for number, (granule, users, entries) in enumerate(pages):
        at = TABLE - 0x800 + 0x100 * number  # zeros follow the table
        made.words(TABLE + 8 * granule, at | bool(entries))
        start = granule * GRANULE
        made.words(at, 0, start, start + GRANULE, start + 0x1000, 0, users, at + 0x80 if entries else 0, size if entries else 0)
        made.words(at + 0x80, *entries, *[(1 << 64) - 1] * (ENTRIES - len(entries)))
    return made


def test_objects_that_zgc_of_jdk_11_moved() -> None:
    """The previous address of an object is that of a copy until the memory of its page is released."""
    base = 4 << 42
    found = relocation(jdk11((5, 0, [9 << 42 | 0x100, 2 << 42 | 0x200]), (3, 1, [1 << 42 | 0x300]), (7, 1, [])))
    before = [3 * GRANULE + 8, 5 * GRANULE + 16, 5 * GRANULE + 72]
    assert [one - base for one in found.young.before] == before and found.is_known
    assert [one - base for one in found.young.now] == [0x300, 0x200, 0x100]
    assert [one - base for one in found.copies] == before[:1]
    for damaged in (jdk11((5, 1, [1 << 62])), jdk11((5, 1, [1 << 42]), size=1 << 40)):
        assert not relocation(damaged).is_known


@pytest.mark.parametrize(("number", "has_copies"), [(6, True), (7, False), (8, False)])
def test_a_released_page_in_the_table_of_pages(number: int, has_copies: bool) -> None:
    """The objects on the page are copies if the page is older than the page to which they were moved. Otherwise the page is new."""
    made = image((5, 0, [(9, GRANULE + 0x100)]))
    add_pages(made, number << 32, 7 << 32)
    assert bool(relocation(made).copies) == has_copies


def add_pages(made: Image, page: int, target: int) -> None:
    """Add a page at granule 5, whose objects were moved, and a page at granule 1. `page` and `target` are the first words of their
    descriptors."""
    made.fields.update({("ZPageTable", "_map"): 0, ("ZGranuleMapForPageTable", "_map"): 8, ("ZPage", "_type"): 0, ("ZPage", "_seqnum"): 4})
    table, pages = OBJECTS + 0x5000, OBJECTS + 0x6000
    made.words(COLLECTED + 0x40 + 0x90, 64, table)
    made.words(table + 8 * 5, pages)
    made.words(table + 8, pages + 0x100)
    made.words(pages, page)
    made.words(pages + 0x100, target)


def add_generations(made: Image, is_young: bool) -> None:
    """Change an image to ZGC with generations. The forwardings belong to the young or to the old generation."""
    heap, empty, current = COLLECTED + 0x40, OBJECTS + 0x4000, 1 << 12
    del made.fields["ZHeap", "_forwarding_table"]
    made.fields["ZGlobalsForVMStructs", "_ZPointerLoadGoodMask"] = 24
    made.words(GLOBALS + 24, MASKS + 24)
    made.words(MASKS + 8, 0, 0, current)
    made.sizes["ZHeap"] = 0x100
    made.words(empty, *[0] * 64)
    made.words(
        heap + 0xA0, *(word for one in ((empty, TABLE) if is_young else (TABLE, empty)) for word in (heap + 0x40, heap + 0x90, 64, one))
    )


@pytest.mark.parametrize(("is_young", "age", "has_copies"), [(True, 0, True), (True, 3, True), (True, 15, False), (False, 15, True)])
def test_a_released_page_of_a_generation(is_young: bool, age: int, has_copies: bool) -> None:
    """If the table has an old page at the address of a young page, the old page is new. It has a sequence number of the old generation."""
    made = image((5, 0, [(9, GRANULE + 0x100)]))
    add_generations(made, is_young)
    add_pages(made, 6 << 32 | age << 16, 7 << 32 | 1 << 16)
    found = relocation(made)
    assert found.is_known and bool(found.copies) == has_copies
    assert [len(found.young.before), len(found.old.before)] == [is_young, not is_young]


@pytest.mark.parametrize("damage", ["page", "length", "shift", "missing"])
def test_damaged_tables(damage: str) -> None:
    """If a table is damaged, the moves are unknown, and no object counts as garbage."""
    made = image((3, 0, [(1, 0x300)]))
    if damage == "page":
        made.words(PAGES, 4 * GRANULE, 5 * GRANULE)
    elif damage == "length":
        made.words(PAGES + 24, 1 << 40)
    elif damage == "shift":
        made.words(PAGES + 16, 1 << 20)
    else:
        made.words(TABLE + 8 * 3, 0x1234567890)
    assert not relocation(made).is_known
