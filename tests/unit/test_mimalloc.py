"""mimalloc in synthetic images: every layout of the tables, and every kind of damage."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import fake
import pytest
from hostile import PAGE, Claim, hostile, lines_run, tail

from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.mimalloc import aligned, checks, layout, lists, segments
from findleaks.allocators.mimalloc.instance import Mimalloc
from findleaks.engine.reference.engine import PureEngine
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Range
from findleaks.target.core import open_core

SEGMENT = 0x7F0000000000
THREAD = 0x7EFF00001000
KEYS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
SIZE = 64
CAPACITY = 10
USED, FREE, LOCAL, REMOTE = (0, 1, 4, 5, 6, 8), (2, 3), (7,), (9,)
"""Blocks by number: page.used counts USED and REMOTE."""


class Image:
    """One page of 64-byte blocks, in a segment (2.x) or a separate mapping (3.x). Its lists have the links of this layout."""

    def __init__(self, row: layout.SegmentLayout | layout.PageLayout) -> None:
        self.row = row
        self.keys = KEYS if row.keyed else (0, 0)
        self.area = SEGMENT + layout.SLICE
        if isinstance(row, layout.SegmentLayout):
            self.meta = SEGMENT + row.header.size + row.page.size
            self.start = self.area + (0 if "start" in row.page.offsets else 384)
        else:
            self.meta = self.area
            self.start = self.area + 192
        self.blocks = [self.start + SIZE * number for number in range(CAPACITY)]
        self.memory = bytearray(4 * layout.SLICE)
        for number in range(CAPACITY):
            self.put(self.blocks[number], b"x" * SIZE)
        self.heads = [self.link(numbers) for numbers in (FREE, LOCAL, REMOTE)]
        self.records: dict[int, bytes] = {}
        self.fill()
        self.module = Module("/lib/made-up.so", 0x400000, 0x400000, 0x402000)
        self.extra: dict[int, bytes] = {}
        if isinstance(row, layout.PageLayout):
            self.map()

    def put(self, address: int, data: bytes) -> None:
        at = address - SEGMENT
        self.memory[at : at + len(data)] = data

    def word(self, address: int, value: int) -> None:
        self.put(address, struct.pack("<Q", value))

    def link(self, numbers: tuple[int, ...]) -> int:
        for number, following in zip(numbers, (*numbers[1:], None)):
            target = 0 if following is None else self.blocks[following]
            self.word(self.blocks[number], lists.encode(target, self.keys, self.meta) if self.row.keyed else target)
        return self.blocks[numbers[0]]

    def fill(self, **changed: int) -> None:
        """Write the descriptors of the page and of the segment."""
        values = {"capacity": CAPACITY, "reserved": 12, "used": len(USED) + len(REMOTE), "size": SIZE, "key0": KEYS[0], "key1": KEYS[1]}
        values.update(
            zip(("free", "local", "thread"), self.heads),
            slice_count=3,
            heap=THREAD + 0x20000,
            owner=THREAD,
            kind=4 if isinstance(self.row, layout.SegmentLayout) else self.row.os_kinds[0],
        )
        values.update(base=SEGMENT, extent=len(self.memory), thread=self.heads[2] | 1, start=self.start)
        row = self.row
        if isinstance(row, layout.SegmentLayout):
            values["thread"] = self.heads[2]
            header = {"used": 1, "cookie": SEGMENT ^ 0x1234567890, "segment_slices": 512, "info_slices": 1, "kind": 0}
            header.update(slice_entries=4, thread_id=THREAD)
            for name, offset in row.header.offsets.items():
                self.word(SEGMENT + offset, header[name])
            self.put(SEGMENT + row.header.size, struct.pack("<II", 1, 0))
        elif not row.pointer:
            values["start"] = (self.start - self.meta) // row.unit
        values.update(changed)
        self.put(self.meta, row.page.form.pack(*(values.get(name, 0) for name in row.page.offsets)))

    def map(self) -> None:
        """Write the page map: two levels, and the variable that points to it."""
        top, size = 0x7E0000000000, 1 << 21
        self.extra[top] = bytes(size + 0x11000)
        self.extra[0x7D0000000000] = bytes(0x10000)
        self.extra[0x401000] = struct.pack("<Q", top) + bytes(4088)
        header = 80 if self.row.map_header else 0
        self.poke = {top + 16: top} if header else {}
        self.poke[top + header] = top + size + (0x1000 if header else 0)
        self.poke[top + header + 8 * (SEGMENT >> 29)] = 0x7D0000000000
        self.poke[0x7D0000000000 + 8 * ((self.area >> 16) & 8191)] = self.meta

    def target(self) -> fake.FakeTarget:
        made = fake.FakeTarget(
            {SEGMENT: bytes(self.memory), **self.extra},
            names={0x401000: "/lib/made-up.so"},
            modules=[self.module],
            threads=[fake.thread(tid=77, thread_pointer=THREAD)],
        )
        for address, value in getattr(self, "poke", {}).items():
            made.write_word(address, value)
        return made

    def read(self) -> tuple[Directory, Mimalloc]:
        directory = build_directory(self.target(), PureEngine(X86_64))
        (found,) = (a for a in directory.allocators if isinstance(a, Mimalloc))
        return directory, found


def find_states(directory: Directory, image: Image, numbers: tuple[int, ...]) -> set[str]:
    blocks = directory.blocks
    return {blocks.state(blocks.find(image.blocks[number])).name for number in numbers}


ROWS = [*layout.SEGMENTS, *layout.PAGES]
NAMES = [f"{row.version}{'-encoded' if row.keyed else ''}" for row in ROWS]


@pytest.fixture(params=ROWS, ids=NAMES)
def image(request: pytest.FixtureRequest) -> Image:
    return Image(request.param)


def test_every_layout(image: Image) -> None:
    directory, found = image.read()
    assert directory.problems == []
    assert found.version == image.row.version
    assert find_states(directory, image, USED) == {"IN_USE"}
    assert find_states(directory, image, FREE + LOCAL) == {"FREE"}
    assert find_states(directory, image, REMOTE) == {"CACHED"}
    (row,) = found.caches(directory.blocks)
    assert (row.in_use, row.cached, row.free, row.total) == (6, 1, 3, CAPACITY)
    assert (row.in_use_bytes, row.size, row.own["used"]) == (6 * SIZE, SIZE, 7)
    assert [problem for problem in found.verify(directory.blocks) if problem] == []
    (cache,) = found.thread_caches(directory.blocks)
    assert (cache.thread, cache.blocks, cache.bytes) == (77, 1, SIZE)
    assert any(start <= image.meta < end for start, end in ((heap.start, heap.end) for heap in found.heaps()))


def test_a_link_out_of_the_page_is_reported(image: Image) -> None:
    wild = 0x6162636465666768
    image.word(image.blocks[FREE[0]], lists.encode(wild, image.keys, image.meta) if image.row.keyed else wild)
    directory, found = image.read()
    assert any("free of the page" in problem.what and "corrupt" in problem.what for problem in directory.problems)
    assert find_states(directory, image, USED) == {"IN_USE"}
    assert find_states(directory, image, LOCAL) == {"FREE"}
    link = image.blocks[FREE[0]]
    assert [problem.damaged for problem in directory.problems if "free of the page" in problem.what] == [Range(link, link + 8)]
    assert not any("counts" in problem.what for problem in found.verify(directory.blocks) if problem), "consequences were reported"


def test_a_cycle_ends(image: Image) -> None:
    back = image.blocks[FREE[0]]
    image.word(image.blocks[FREE[1]], lists.encode(back, image.keys, image.meta) if image.row.keyed else back)
    directory, _ = image.read()
    assert any("corrupt" in problem.what for problem in directory.problems)
    assert find_states(directory, image, USED) == {"IN_USE"}


def test_a_block_freed_twice(image: Image) -> None:
    image.heads[1] = image.blocks[FREE[1]]
    image.fill()
    directory, found = image.read()
    reported = [problem for problem in found.verify(directory.blocks) if problem]
    assert any(f"{image.blocks[FREE[1]]:#x} is on its page's free lists twice" in problem.what for problem in reported)


def test_a_wrong_count(image: Image) -> None:
    image.fill(used=4)
    directory, found = image.read()
    assert directory.problems == []
    assert [p.address for p in found.verify(directory.blocks) if p] == [image.meta]


@pytest.mark.parametrize("row", layout.SEGMENTS, ids=NAMES[: len(layout.SEGMENTS)])
def test_an_invalid_page_beside_a_valid_one(row: layout.SegmentLayout) -> None:
    """The page of the last slice claims more blocks than fit. It is reported, and the other page is read."""
    image = Image(row)
    image.fill(slice_count=2)
    second = Image(row)
    second.fill(slice_count=1, capacity=500)
    at = image.meta - SEGMENT
    other = at + 2 * row.page.size
    image.memory[other : other + row.page.size] = second.memory[at : at + row.page.size]
    directory, _ = image.read()
    assert [problem.address for problem in directory.problems] == [SEGMENT + other]
    assert "500 blocks of 12" in directory.problems[0].what
    assert find_states(directory, image, USED) == {"IN_USE"}


@pytest.mark.parametrize("offset", range(0, 416, 8))
@pytest.mark.parametrize("row", [layout.SEGMENTS[0], layout.SEGMENTS[-1], layout.PAGES[0], layout.PAGES[-1]], ids=lambda row: row.version)
def test_any_damage_is_handled(row: layout.SegmentLayout | layout.PageLayout, offset: int) -> None:
    image = Image(row)
    base = SEGMENT + offset if isinstance(row, layout.SegmentLayout) else image.meta + offset - 100 * (offset >= 200)
    image.word(base & -8, 0xFFFFFFFFFFFFFF41)
    directory = build_directory(image.target(), PureEngine(X86_64))
    for allocator in directory.allocators:
        list(allocator.verify(directory.blocks))
        allocator.caches(directory.blocks)


@pytest.mark.parametrize("row", [row for row in (*layout.SEGMENTS, *layout.PAGES) if getattr(row, "pointer", "start" in row.page.offsets)])
def test_a_page_whose_first_block_is_misaligned(row: layout.SegmentLayout | layout.PageLayout) -> None:
    """The descriptor has a pointer to the first block. Blocks are at multiples of 8."""
    image = Image(row)
    image.fill(start=image.start + 1)
    assert build_directory(image.target(), PureEngine(X86_64)).allocators == []


def test_links_are_decoded_as_they_are_encoded() -> None:
    for pointer in (0, SEGMENT, SEGMENT + 0x1230):
        assert lists.decode(lists.encode(pointer, KEYS, THREAD), KEYS, THREAD) == pointer


def test_where_an_alignment_can_have_moved_a_pointer() -> None:
    assert aligned._list_spots(0x1010, 256) == [0x1020, 0x1040, 0x1080, 0x1100]
    assert aligned._list_spots(0x1000, 256) == []
    assert aligned._list_spots(0x1050, 32) == [0x1060]


@pytest.mark.parametrize("referred", ["start", "moved", "below", "nothing"])
def test_references_locate_aligned_blocks(referred: str) -> None:
    """The allocator may have moved the pointer to a block whose first word is a link. A reference in a root decides."""
    image = Image(next(row for row in layout.SEGMENTS if "start" in row.page.offsets and not row.keyed))
    image.fill(size=80, flags=2, free=0, local=0, thread=0, used=CAPACITY)
    block = image.start + 80
    spot = -(-block // 32) * 32
    assert spot != block
    image.word(block, image.start + 160)
    root = {"start": block, "moved": spot, "below": block + 8, "nothing": 0}[referred]
    image.extra[0x401000] = struct.pack("<Q", root) + bytes(4088)
    directory, found = image.read()
    blocks = directory.blocks
    index = blocks.find(block + 79)
    expected = spot if referred in ("moved", "nothing") else block
    assert (blocks.address(index), blocks.size(index)) == (expected, block + 80 - expected)
    assert found.moved == ({block: spot} if expected == spot else {})
    assert len(blocks) == CAPACITY


class Words:
    """Memory that consists of a few words."""

    def __init__(self, words: dict[int, int]) -> None:
        self._words = words

    def word(self, address: int) -> int | None:
        return self._words.get(address)


@pytest.mark.parametrize("right", [True, False])
def test_padding_is_determined_by_any_blocks_in_use(right: bool) -> None:
    """The blocks in use determine the padding, although the first blocks of a page may all be free."""
    page = layout.MimallocPage(SEGMENT, SEGMENT + 4096, SIZE, CAPACITY, CAPACITY, 2, 0, 0, 0, KEYS, False, THREAD, 0, 4096, "")
    used = [page.start + SIZE * number for number in (7, 9)]
    canaries = {block + SIZE - 8: lists.encode(block, KEYS, page.meta) & 0xFFFFFF00 if right else 0x41414141 for block in used}
    live = aligned.Live([page], lambda page: set(range(page.start, page.end, SIZE)) - set(used))
    assert checks.are_padded(Words(canaries), [page], live) is right  # type: ignore[arg-type]


OLDEST = next(row for row in layout.SEGMENTS if "start" not in row.page.offsets)


def test_a_page_of_2_1_0_whose_blocks_exceed_its_segment() -> None:
    """This page has the layout of 2.0.9. There, the blocks would begin 56 bytes earlier, and fit into the segment."""
    image = Image(OLDEST)
    first, second = image.area + 440, image.area + layout.SLICE + 440
    fit = (2 * layout.SLICE - 384) // 440
    for count in (fit - 1, fit):
        image.fill(size=440, capacity=count, reserved=count, used=count, free=0, local=0, thread=0, slice_count=2)
        record = image.memory[image.meta - SEGMENT :][: OLDEST.page.size]
        image.put(image.meta + OLDEST.page.size, record)
        image.fill(size=440, capacity=9, reserved=9, used=8, free=first + 3 * 440, local=0, thread=0, slice_count=1)
        image.word(SEGMENT + OLDEST.header.offsets["segment_slices"], 4)
        image.put(SEGMENT + OLDEST.header.offsets["kind"], struct.pack("<I", 1))
        image.word(first + 3 * 440, 0)
        directory = build_directory(image.target(), PureEngine(X86_64))
        assert sum("more than fit" in problem.what for problem in directory.problems) == (count == fit)
        assert directory.blocks.find(first) >= 0
        assert (directory.blocks.find(second) < 0) == (count == fit)


@pytest.mark.parametrize("row", [layout.SEGMENTS[0], OLDEST], ids=["new", "old"])
def test_segments_that_all_have_another_cookie(row: layout.SegmentLayout, tmp_path: Path) -> None:
    """Each segment would belong to another copy of mimalloc. Only a limited number of copies are read."""
    image = Image(row)
    base = gzip.decompress((Path(__file__).parents[2] / "cores" / "sample.core.gz").read_bytes())
    work = []
    for count in (200, 800):
        pages, claims = [], []
        for number in range(count):
            start = SEGMENT + number * layout.SEGMENT
            page = bytes(image.memory[:PAGE]).replace(struct.pack("<Q", image.start), struct.pack("<Q", image.start - SEGMENT + start))
            pages.append((number * PAGE, page))
            claims.append(Claim(start, layout.SEGMENT, tail(base) + number * PAGE, PAGE))
        path = hostile(tmp_path / str(count), base, claims, hole=count * PAGE, data=pages)
        with open_core(str(path)) as core:
            session = Session(core)
            work.append(lines_run(lambda session=session: session.directory))  # type: ignore[misc]
            directory = session.directory
        assert sum(isinstance(one, Mimalloc) for one in directory.allocators) == segments.MOST
        assert any(f"{count - segments.MOST - 1} more: they are not read" in problem.what for problem in directory.problems)
    assert work[1] < 4 * work[0]


class CountingList(list[layout.MimallocPage]):
    """Pages that count how often they are read."""

    given = 0

    def __iter__(self) -> Iterator[layout.MimallocPage]:
        for page in super().__iter__():
            self.given += 1
            yield page


def test_pages_that_all_have_another_heap() -> None:
    """The owners of pages are looked up once, not once for each heap."""
    row, count = layout.SEGMENTS[0], 100
    image = Image(row)
    image.memory = bytearray((count + 2) * layout.SLICE)
    records = []
    for number in range(count):
        start = SEGMENT + (number + 1) * layout.SLICE
        image.fill(slice_count=1, start=start, heap=THREAD + 0x20000 + 64 * number, free=0, local=0, thread=0, used=0)
        records.append(bytes(image.memory[image.meta - SEGMENT :][: row.page.size]))
    for number, record in enumerate(records):
        image.put(image.meta + number * row.page.size, record)
    image.word(SEGMENT + row.header.offsets["slice_entries"], count + 1)
    _, found = image.read()
    assert len({page.heap for page in found.pages}) == count
    found.pages = pages = CountingList(found.pages)
    found._read_delayed(row)
    assert count <= pages.given <= 2 * count
