"""Structures to which only interior pointers refer, for all architectures: the C engine and the reference engine agree,
for intact and damaged memory."""

from __future__ import annotations

import random

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine
from findleaks.engine.interior_structures import ROW, Structure
from findleaks.engine.terms import Heuristic, Kind
from findleaks.target.arch import Arch
from findleaks.target.base import Range

ARCHES = graphs.ARCHES
HEAP, ROOTS, CODE = 0x10000000, 0x20000000, 0x30000000


class Image:
    """Blocks one after the other, and root memory with pointers into them."""

    def __init__(self, arch: Arch, seed: int) -> None:
        self.arch, self.rng = arch, random.Random(seed)
        self.heap, self.roots = bytearray(), bytearray(64)
        self.blocks: list[tuple[int, int]] = []
        self.expected: list[Structure] = []

    def words(self, *values: int) -> bytes:
        return bytes(self.arch.pack([value & self.arch.mask for value in values]))

    def block(self, data: bytes) -> int:
        start = HEAP + len(self.heap)
        self.blocks.append((start, len(data)))
        self.heap += data.ljust(-(-len(data) // 16) * 16 + 16, b"\0")
        return start

    def root(self, *values: int) -> None:
        self.roots += self.words(*values) + bytes(64)

    def hashbrown(self, size: int, buckets: int, width: int) -> None:
        capacity = buckets - 1 if buckets <= 8 else buckets // 8 * 7
        control = [0xFF] * buckets
        for at in self.rng.sample(range(buckets), self.rng.randint(0, capacity)):
            control[at] = self.rng.choice((0x80, *self.rng.sample(range(128), 5)))
        tail = control[:width] if buckets >= width else [0xFF] * (width - buckets) + control
        offset = -(-size * buckets // width) * width
        start = self.block(self.rng.randbytes(offset) + bytes(control + tail))
        items = sum(one < 128 for one in control)
        others = [buckets - 1, capacity - items - control.count(0x80), items]
        at = self.rng.randint(0, 3)
        self.rng.shuffle(others)
        self.root(*others[:at], start + offset, *others[at:])
        self.expected.append(Structure.HASHBROWN)

    def swiss(self, size: int, capacity: int, width: int) -> None:
        most = 6 if (capacity, width) == (7, 8) else capacity - capacity // 8
        control = [0x80] * capacity
        for at in self.rng.sample(range(capacity), self.rng.randint(0, most)):
            control[at] = self.rng.choice((0xFE, *self.rng.sample(range(128), 5)))
        clones = (control[: width - 1] + [0x80] * width)[: width - 1]
        growth = most - sum(one != 0x80 for one in control)
        head = self.words(growth) + bytes([*control, 0xFF, *clones])
        head = head.ljust(-(-len(head) // self.arch.word) * self.arch.word, b"\0")
        start = self.block(head + self.rng.randbytes(size * capacity))
        self.root(start + self.arch.word, start + len(head), capacity, 2 * (most - growth))
        self.expected.append(Structure.SWISS_TABLE)

    def chunk(self, size: int, form: int) -> None:
        word = self.arch.word
        start = HEAP + len(self.heap)
        end = start + size
        forms = (self.words(size | 3, 0), self.words(0x0303, size, 0), self.words(0, start, start + 8, 16))
        self.block(self.rng.randbytes(size - len(forms[form])) + forms[form])
        self.root(end - len(forms[form]))
        assert len(forms[form]) // word == 2 + form
        self.expected.append(Structure.CHUNK_AT_END)

    def read_counters(self) -> None:
        start = self.block(self.words(self.rng.randint(1, 9), self.rng.randint(1, 9)) + self.rng.randbytes(40))
        self.root(start + 2 * self.arch.word)
        self.expected.append(Structure.COUNTED_VALUE)

    def aligned(self, align: int, words: int) -> None:
        """`words`: distance of the block's address from the aligned memory."""
        word = self.arch.word
        start = HEAP + len(self.heap)
        pointer = -(-(start + words * word) // align) * align
        block = bytearray(self.rng.randbytes(pointer - start + 100))
        block[pointer - start - words * word : pointer - start - (words - 1) * word] = self.words(start)
        self.block(bytes(block))
        self.root(pointer)
        self.expected.append(Structure.ALIGNED)

    def tagged(self, tag: int, first: bytes) -> None:
        """Add a block that begins with `first`. A link in the block and a root refer to the block by pointers with this tag."""
        start = HEAP + len(self.heap)
        self.root(self.block(first + bytes(24) + self.words(start + tag) + bytes(8)) + tag)

    def php_array(self, places: int, slots: int, element: int, more: int = 0) -> None:
        """`slots`: 2 for a packed array. `element`: bytes of an element. `more`: bytes that the allocator adds."""
        used = self.rng.randint(0, places)
        numbers = [0xFFFFFFFF, *(range(used) if slots > 2 else ())]
        index = self.rng.choices(numbers, k=slots)
        start = self.block(self.numbers(*index) + self.rng.randbytes(places * element + more))
        self.roots += (
            self.numbers(1, -slots) + self.words(start + 4 * slots) + self.numbers(used, self.rng.randint(0, used), places, 0) + bytes(64)
        )
        self.expected.append(Structure.PHP_ARRAY)

    def php_arguments(self, count: int, more: int) -> None:
        required = self.rng.randint(0, count)
        first = self.words(self.rng.choice((required, -1, 0)), 0x200000000000000)
        start = self.block(first + bytes(32 * (count + more) + 8 - len(first)))
        self.roots += self.numbers(count, required) + self.words(start + 32) + bytes(64)
        self.expected.append(Structure.PHP_ARGUMENTS)

    def php_object(self, offset: int) -> None:
        handlers = ROOTS + len(self.roots)
        self.roots += self.numbers(offset) + bytes(60)
        own = self.rng.randbytes(offset)
        start = self.block(own + self.numbers(self.rng.randint(1, 9), 8 | self.rng.randrange(1 << 20) << 4) + self.words(3, 5, handlers, 0))
        self.root(start + offset)
        self.expected.append(Structure.PHP_OBJECT)

    def node(self, offset: int, colour: int) -> None:
        """Add a block with a node at an offset. A root and the node refer to each other; `colour` is in the low bits of the node's link."""
        start = HEAP + len(self.heap)
        self.block(self.rng.randbytes(offset) + self.words(0, (ROOTS + len(self.roots)) | colour) + self.rng.randbytes(24))
        self.root(start + offset)
        self.expected.append(Structure.LINK)

    def chain(self, offset: int, flags: int, count: int) -> None:
        """Add a singly linked list of blocks of one size, whose links refer to the links. `flags` are in the low bits of all links except
        the root's."""
        size, start = offset + 40, HEAP + len(self.heap)
        step = -(-size // 16) * 16 + 16
        for number in range(count):
            link = start + (number + 1) * step + offset + flags if number + 1 < count else 0
            self.block(self.rng.randbytes(offset) + self.words(link) + self.rng.randbytes(40 - self.arch.word))
        self.root(start + offset)

    def exception(self, class_: bytes, offset: int) -> None:
        class_ = class_ if self.arch.byteorder == "big" else class_[::-1]
        start = self.block(self.rng.randbytes(96) + class_ + self.rng.randbytes(48))
        self.root(start + offset)
        self.expected.append(Structure.EXCEPTION)

    def string(self, text: bytes, spare: int) -> None:
        start = self.block(self.words(len(text), len(text) + spare, self.rng.randint(0, 5)) + text + bytes(spare + 1))
        self.root(start + 24)
        self.expected.append(Structure.STRING)

    def bump_chunk(self, size: int, is_align_first: bool) -> None:
        start, word = HEAP + len(self.heap), self.arch.word
        layout = (16, size) if is_align_first else (size, 16)
        footer = self.words(start, *layout, ROOTS + 16, start + self.rng.randrange(size - 6 * word), 5)
        self.block(self.rng.randbytes(size - len(footer)) + footer)
        self.root(start + size - len(footer))
        self.expected.append(Structure.BUMP_CHUNK)

    def numbers(self, *values: int) -> bytes:
        return b"".join((value & 0xFFFFFFFF).to_bytes(4, self.arch.byteorder) for value in values)

    def frame(self) -> None:
        start = HEAP + len(self.heap)
        self.block(self.words(CODE + 16, CODE + 64, *[7] * 9, start, 3, 3))
        self.root(start + 10 * self.arch.word)
        self.expected.append(Structure.COROUTINE_FRAME)

    def stack(self, guarded: bool, control_block: bool) -> None:
        start = HEAP + len(self.heap)
        context = self.words(0x037F00001F80, *[5] * (7 if guarded else 6), CODE + 8, *[1] * 4)
        self.block(bytes(1600) + context + bytes(200) + self.words(start + 1600) + bytes(100))
        self.root(start + 1600 + len(context) + 200 - 8 if control_block else start + 1600)
        self.expected.append(Structure.SAVED_CONTEXT)

    def fill(self) -> None:
        """Add every structure in several sizes, in random order."""
        for size in (1, 3, 8, 40):
            for shift in range(1, 8):
                self.hashbrown(size, 1 << shift, self.rng.choice((16, 8, 4)))
                self.swiss(size, (1 << shift) - 1, self.rng.choice((16, 8)))
        for form in range(3):
            self.chunk(64 * self.rng.randint(2, 9), form)
        self.read_counters()
        self.frame()
        for align, words in ((16, 1), (64, 1), (4096, 1), (4096, 6), (4096, 8)):
            self.aligned(align, words)
        if self.arch.word == 8:
            for shift in (3, 6):
                for slots in (2, 1 << shift, 2 << shift):
                    self.php_array(1 << shift, slots, 16 if slots == 2 else 32)
            self.php_array(256, 2, 32, 12288 - 8200)  # PHP 8.1, an array of three pages
            for count in (0, 1, 4):
                self.php_arguments(count, 1 + count % 2)
            for offset in (8, 80):
                self.php_object(offset)
        for tag in (1, 2, 3, 5, 7) if self.arch.word == 8 else ():
            self.tagged(tag, self.words(self.rng.randrange(1 << 47)))
            self.expected.append(Structure.TAGGED_START)
        for offset, colour in ((1, 0), (5, 0), (2, 1)):
            self.node(offset * self.arch.word, colour)
        for is_align_first in (False, True):
            self.bump_chunk(64 * self.rng.randint(2, 9), is_align_first)
        if self.arch.word == 8:
            for offset, class_ in ((128, b"GNUCC++\0"), (16, b"GNUCC++\1"), (96, b"CLNGC++\0")):
                self.exception(class_, offset)
            for spare in (0, 7):
                self.string(b"connection refused", spare)
                self.string(b"a record" + bytes(300), spare)
        if (self.arch.word, self.arch.byteorder) == (8, "little"):
            for number in range(4):
                self.stack(bool(number & 1), bool(number & 2))

    def damage(self, count: int) -> None:
        for memory in (self.heap, self.roots):
            for _ in range(count):
                memory[self.rng.randrange(len(memory))] ^= 1 << self.rng.randrange(8)

    def find_rows(self, engine: Engine, budget: int, credit: int = 1 << 20) -> tuple[list[tuple[int, ...]], bytes, bytes]:
        """Return the rows, and the kinds of blocks before and after."""
        blocks = engine.blocks(self.arch, 4)
        blocks.append([start for start, _ in self.blocks], [size for _, size in self.blocks], [0] * len(self.blocks))
        graph = engine.graph(blocks, Heuristic.AUTO)
        pieces = [*graphs.cut(HEAP, bytes(self.heap), random.Random(1), self.arch.word), graphs.piece(ROOTS, bytes(self.roots))]
        for piece in pieces[:-1]:
            graph.scan_blocks(piece)
        graph.scan_roots(pieces[-1])
        while not graph.mark(7):
            pass
        before = bytes(graph.kinds())
        interiors = graph.interiors()
        places = interiors.places(1 << 20)
        assert places is not None and len(places) % 3 == 0
        rows = []
        for links in (False, True):
            examination = interiors.examine(pieces, [Range(CODE, CODE + 4096)], credit, True, links)
            while not examination.step(budget):
                pass
            while not interiors.promote(budget):
                pass
            found = examination.list_accepted()
            rows += [tuple(found[at : at + ROW]) for at in range(0, len(found), ROW)]
        return sorted(rows, key=lambda row: row[1]), before, bytes(graph.kinds())


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
def test_intact_structures_are_found(arch: Arch) -> None:
    image = Image(arch, 5)
    image.fill()
    rows, before, after = image.find_rows(graphs.native(arch), 3)
    assert [Structure(row[0]) for row in rows] == image.expected
    assert [row[1] for row in rows] == list(range(len(image.blocks)))
    assert set(before) == {Kind.POSSIBLE} and set(after) == {Kind.REACHABLE}


def test_pointers_without_a_tag() -> None:
    """Offsets into a text, offsets of members, and an offset that is too large for a tag do not count as tags."""
    image = Image(graphs.X86_64, 6)
    for tag, first in ((1, b"GET / HT"), (3, bytes([0x80] * 8)), (4, bytes(8)), (8, bytes(8)), (9, bytes(8))):
        image.tagged(tag, first)
    rows, _, after = image.find_rows(graphs.native(), 3)
    assert rows == [] and set(after) == {Kind.POSSIBLE}


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
@pytest.mark.parametrize("flags", [0, 1, 2])
def test_singly_linked_lists(arch: Arch, flags: int) -> None:
    image = Image(arch, 7)
    image.chain(2 * arch.word, flags, 6)
    rows, _, after = image.find_rows(graphs.native(arch), 3)
    assert {Structure(row[0]) for row in rows} == {Structure.LINK} and len(rows) == 6
    assert set(after) == {Kind.REACHABLE}


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_pointers_that_are_no_links(engine: Engine) -> None:
    """Three kinds of pointers are not links: pointers to other members of a block with links, links to other offsets,
    and structures with one wrong field."""
    image = Image(graphs.X86_64, 8)
    start = image.block(bytes(16) + image.words(ROOTS + 64) + bytes(24))
    image.root(start + 40)  # another member
    other = image.block(bytes(48))
    image.root(image.block(bytes(16) + image.words(other + 24) + bytes(24)) + 16)  # refers to another offset in the block
    image.root(other + 16)
    image.root(image.block(bytes(96) + b"\0++CCUN\0" + bytes(48)) + 128)  # not the class of a C++ exception
    image.root(image.block(bytes(96) + b"\0++CCUNG" + bytes(48)) + 120)  # not the address of the exception object
    for length, capacity, owners, text in (
        (5, 4, 0, b"hello\0"),
        (4, 5, 0, b"hello\0"),
        (5, 5, 1 << 20, b"hello\0"),
        (0, 5, 0, b"hello\0"),
    ):
        image.root(image.block(image.words(length, capacity, owners) + text + bytes(2)) + 24)
    at = HEAP + len(image.heap)
    for first, used in ((at + 8, at), (at, at - 8), (at, at + 136)):
        image.root(image.block(bytes(128) + image.words(first, 176, 16, 0, used, 0)) + 128)
        at = HEAP + len(image.heap)
    rows, _, after = image.find_rows(engine, 3)
    assert rows == [] and set(after) == {Kind.POSSIBLE}


@given(
    seed=st.integers(0, 2**32 - 1),
    arch=st.sampled_from(ARCHES),
    count=st.sampled_from((0, 5, 60, 400)),
    budget=st.sampled_from((1, 1 << 12)),
)
@settings(max_examples=graphs.share(40))
def test_the_engines_agree(seed: int, arch: Arch, count: int, budget: int) -> None:
    image = Image(arch, seed)
    image.fill()
    for flags in range(3):
        image.chain(arch.word * (1 + flags), flags, 5)
    image.damage(count)
    credit = random.Random(seed).choice((1 << 20, 300))
    assert image.find_rows(graphs.native(arch), budget, credit) == image.find_rows(graphs.pure(arch), 1 << 12, credit)


def test_amount_of_read_memory_is_limited() -> None:
    """Many heads that claim one large table do not make the reader read it repeatedly."""
    image = Image(graphs.X86_64, 9)
    buckets = 1 << 14
    start = image.block(bytes(8 * buckets) + b"\xff" * (buckets + 16))
    for _ in range(50):
        image.root(start + 8 * buckets, buckets - 1, buckets // 8 * 7, 0)
    rows, _, _ = image.find_rows(graphs.native(), 1 << 12, 3 * buckets)
    assert len(rows) == 3
