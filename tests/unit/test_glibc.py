"""glibc's heaps in synthetic images: every layout of the tables, and every kind of damage."""

from __future__ import annotations

import struct

import fake
import ptmalloc
import pytest
from ptmalloc import BITS_32, SIZE, TCACHE_OFFSET, Image, of_release

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.glibc import layout, lists, spans
from findleaks.allocators.glibc.instance import Glibc
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Module

BIG = X86_64._replace(name="made up, big-endian", machine=22, byteorder="big")


def read(target: fake.FakeTarget) -> tuple[Directory, Glibc]:
    directory = build_directory(target, PureEngine(target.arch))
    (glibc,) = directory.allocators
    assert isinstance(glibc, Glibc)
    return directory, glibc


def find_states(directory: Directory, addresses: list[int]) -> set[str]:
    blocks = directory.blocks
    found = set()
    for address in addresses:
        index = blocks.find(address)
        found.add(blocks.state(index).name if index >= 0 and blocks.address(index) == address else "absent")
    return found


def check_all(image: Image, directory: Directory) -> None:
    assert not directory.problems
    assert find_states(directory, image.blocks["used"]) == {"IN_USE"}
    assert find_states(directory, image.blocks["free"]) == {"FREE"}
    assert find_states(directory, image.blocks["mapped"]) == {"IN_USE"}
    assert find_states(directory, image.blocks["fast"]) == ({"FREE"} if image.state.fastbins else {"IN_USE"})
    if image.tcache is not None:
        assert find_states(directory, image.blocks["tcache"]) == {"METADATA"}
        assert find_states(directory, image.cached) == {"CACHED"}


@pytest.mark.parametrize("minor", range(15, 46))
def test_every_release(minor: int) -> None:
    image = of_release((2, minor))
    directory, glibc = read(image.build())
    check_all(image, directory)
    assert glibc.instance.layout is image.state and glibc.instance.par_layout is image.par
    assert [arena.name for arena in glibc.instance.arenas] == ["main", "arena 1"]
    first, _, last = glibc.version.partition("-")
    low = int(first.split()[0].split(".")[1])
    assert low <= minor <= (int(last.split(".")[1]) if last else 99 if "newer" in first else low)


@pytest.mark.parametrize(("arch", "align"), [(BITS_32, 8), (BITS_32, 16), (BIG, 16)])
@pytest.mark.parametrize("minor", [28, 31, 36, 43])
def test_other_machines(arch: Arch, align: int, minor: int) -> None:
    image = of_release((2, minor), align, arch)
    directory, glibc = read(image.build())
    check_all(image, directory)
    assert glibc.instance.layout is image.state and glibc.instance.par_layout is image.par
    assert glibc.granule == align


def test_layouts_are_never_confused() -> None:
    """The data of a 2.36 image have, before the true bins, words that look like the bins of 2.43."""
    image = of_release((2, 36))
    target = image.build()
    fooling = image.places.data + 0x2C00
    for index in range(layout.NBINS):
        for place in (fooling + 16 * index, fooling + 16 * index + 8):
            target.write_word(place, fooling + 16 * index - 16)
    directory, _ = read(target)
    check_all(image, directory)


def test_form_of_links_is_detected() -> None:
    image = of_release((2, 36))
    image.mangled = False  # some distributions may build glibc without safe linking
    directory, glibc = read(image.build())
    check_all(image, directory)
    assert glibc.mangled is False


@pytest.mark.parametrize(("minor", "mangled"), [(31, False), (36, True)])
def test_links_that_are_valid_in_both_forms(minor: int, mangled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heap at low addresses of 32 bits: the address shifted by 12 changes a link only a little. The result is still
    aligned and in the heap."""
    monkeypatch.setattr(ptmalloc, "NARROW", ptmalloc.NARROW._replace(heap=0x560000))
    image = of_release((2, minor), 16, BITS_32)
    image.chunks = [(0x40, "used"), *[(0x30, "cached"), (0x40, "used")] * 3, (0x800, "used")]
    target = image.build()
    first, second, *_ = image.cached
    for link in (second, second ^ first >> 12):
        assert 0x560000 < link < image.blocks["used"][-1] + 0x800 and link % 16 == 0
    directory, glibc = read(target)
    assert not directory.problems
    assert find_states(directory, image.cached) == {"CACHED"}
    assert glibc.mangled is mangled


def make_damaged(minor: int = 36) -> tuple[Image, fake.FakeTarget]:
    image = of_release((2, minor))
    image.chunks = [*image.chunks, (0x70, "used"), (0x90, "free"), (0x100, "used"), (0x100, "used")]
    return image, image.build()


def test_corrupt_size_is_reported_and_the_walk_continues() -> None:
    image, target = make_damaged()
    bad = image.blocks["used"][0] - 8
    target.write(bad, b"AAAAAAAA")
    directory, _ = read(target)
    (problem,) = [p for p in directory.problems if "corrupt at" in p.what]
    assert problem.address == bad - 8 and '("AAAAAAAA")' in problem.what and hex(image.blocks["free"][0] - 16) in problem.what
    assert find_states(directory, image.blocks["used"][1:]) == {"IN_USE"}, "the walk continues at the next chunk that a free list refers to"
    assert find_states(directory, image.blocks["free"]) == {"FREE"}
    heap = next(owned.heap for owned in directory.heaps if owned.heap.arena == "main")
    assert heap.foreign == [(bad - 8, image.blocks["free"][0] - 16)]
    assert all(part.end <= bad - 8 or part.start >= heap.foreign[0].end for part in directory.list_claimed()), (
        "skipped memory must be a root"
    )


def read_suspicious_block(state: str, reported: int, links: bool = True, pc: int = 0, held: bool = True) -> tuple[str, list[Problem]]:
    """Return the state of a block if the chunk after it marks it as free but repeats the size `reported`, and the problems."""
    image, target = make_damaged()
    block = image.blocks[state][0]
    behind = block - 16 + (target.word(block - 8) & ~7)
    target.write_word(behind, reported)
    target.write_word(behind + 8, target.word(behind + 8) & ~1)
    if not links:
        target.write(block, b"The quick brown ")
    if pc:
        data = image.places.data
        registers = {"rbx": block - 16 if held else block}
        target._threads = [thread._replace(pc=pc, registers={**thread.registers, **registers}) for thread in target._threads]
        target._modules = [Module("/lib/libc.so.6", data, data, data + 0x4000)]
    directory, _ = read(target)
    return find_states(directory, [block]).pop(), [problem for problem in directory.problems if problem.address == behind]


@pytest.mark.parametrize("reported", [0, 0x6867666564636261])
def test_a_cleared_bit_makes_no_block_free(reported: int) -> None:
    """The terminating zero of a string was written one byte after a block. It cleared the bit that marks the block as
    in use, but the block is in no bin."""
    state, (problem,) = read_suspicious_block("used", reported)
    assert state == "IN_USE" and problem.corrupt and "in no free list" in problem.what
    assert problem.damaged is not None and problem.damaged.start == problem.address + 8


@pytest.mark.parametrize("links", [True, False])
def test_a_free_block_with_an_overwritten_end_stays_free(links: bool) -> None:
    state, (problem,) = read_suspicious_block("free", 0x6867666564636261, links)
    assert state == "FREE" and problem.corrupt and "the copy behind it" in problem.what and problem.expected == 0x60
    assert problem.damaged is not None and problem.damaged.start == problem.address


def test_a_block_inside_free_is_no_damage() -> None:
    state, (problem,) = read_suspicious_block("used", 0, pc=0x7F0000200100)
    assert state == "IN_USE" and not problem.corrupt
    state, (problem,) = read_suspicious_block("used", 0, pc=0x7F0000200100, held=False)
    assert state == "IN_USE" and problem.corrupt, "the state of a thread in strlen does not matter"


def test_corruption_after_the_last_free_chunk_ends_only_this_heap() -> None:
    image, target = make_damaged()
    last = [block for block in image.blocks["used"] if block < image.places.heap + SIZE][-1]
    target.write_word(last - 8, 0x13)
    directory, _ = read(target)
    assert any(problem.address == last - 16 and "count as roots" in problem.what for problem in directory.problems)
    assert find_states(directory, [last]) == {"absent"}
    assert find_states(directory, [block for block in image.blocks["used"] if block != last]) == {"IN_USE"}


@pytest.mark.parametrize("value", [0, 0x4141414141414141, 0x7FFF00000000, 1])
def test_ring_with_invalid_links(value: int) -> None:
    image = of_release((2, 36))
    target = image.build()
    target.write_word(image.main + image.state.next, value)
    directory, _ = read(target)
    assert any("other arenas" in problem.what and hex(value) in problem.what for problem in directory.problems)
    assert find_states(directory, image.blocks["tcache"]) == {"METADATA"}


def test_ring_with_a_wrong_end() -> None:
    image = of_release((2, 36))
    target = image.build()
    target.write_word(image.thread + image.state.next, image.thread)
    directory, glibc = read(target)
    assert len(glibc.instance.arenas) == 2 and any("reaches" in problem.what for problem in directory.problems)


@pytest.mark.parametrize("value", [0x10, 0x4141414141414141, 0x7FFF00000000, 8])
@pytest.mark.parametrize("arena", ["main", "thread"])
def test_invalid_top(arena: str, value: int) -> None:
    image, target = make_damaged()
    target.write_word(getattr(image, arena) + image.state.top, value)
    directory, _ = read(target)
    assert any("top of" in problem.what for problem in directory.problems)
    used = [block for block in image.blocks["used"] if (block < image.places.heap + SIZE) == (arena == "thread")]
    assert find_states(directory, used) == {"IN_USE"}, "the other arena is not affected"


@pytest.mark.parametrize("which", ["cached", "fast"])
@pytest.mark.parametrize("link", [0x4141414141414141, 0x7FFF00000000, 3, "self"])
def test_invalid_links(which: str, link: object) -> None:
    image, target = make_damaged()
    block = (image.cached if which == "cached" else image.blocks["fast"])[0]
    where = block if which == "cached" else block - 16
    value = where if link == "self" else link
    assert isinstance(value, int)
    target.write_word(block, value ^ block >> 12)
    directory, _ = read(target)
    assert any(hex(value) in problem.what for problem in directory.problems)
    assert find_states(directory, [block]) == {"CACHED" if which == "cached" else "FREE"}
    assert find_states(directory, image.blocks["used"]) == {"IN_USE"}


def test_invalid_heap_info() -> None:
    image, target = make_damaged()
    target.write_word(image.places.arena + 16, 0x4141414141414141)
    directory, _ = read(target)
    assert any("heap_info is corrupt" in problem.what for problem in directory.problems)
    assert find_states(directory, [block for block in image.blocks["used"] if block < image.places.heap + SIZE]) == {"IN_USE"}


def test_totals_that_contradict_the_heaps() -> None:
    image = of_release((2, 36))
    target = image.build()
    target.write_word(image.thread + image.state.system_mem, 0x31000)
    target.write_word(image.thread + image.state.system_mem + 8, 0x31000)
    directory, glibc = read(target)
    assert any("arena 1 does not add up" in problem.what and "65,536 unaccounted" in problem.what for problem in directory.problems)
    assert glibc.summary()["reconciled"] is False


def test_metadata_of_a_pool_in_an_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of an arena add up if a pool, such as GSlice, marked a block as its metadata before glibc compares them."""
    image, mark = of_release((2, 36)), Glibc.mark_blocks
    target = image.build()
    (last,) = image.blocks["used"][-1:]

    def mark_later(glibc: Glibc, blocks: Blocks) -> None:
        assert not blocks.set_state([last], State.METADATA)
        mark(glibc, blocks)

    monkeypatch.setattr(Glibc, "mark_blocks", mark_later)
    directory, glibc = read(target)
    assert not directory.problems
    assert glibc.summary()["reconciled"] is True


@pytest.mark.parametrize(("count", "size"), [(3, 0x63000), (2, 0x64000), (1, 0x41000)])
def test_mapped_chunks_are_counted(count: int, size: int) -> None:
    image = of_release((2, 36))
    target = image.build()
    at = image.main - 0x920
    target.write(at + image.par.n_mmaps, struct.pack("<I", count))
    target.write_word(at + image.par.mmapped_mem, size)
    directory, glibc = read(target)
    if count == 1:
        assert not directory.problems and len(glibc.mapped) == 1, "the next mapping is not glibc's"
    else:
        assert any(f"counts {count} mmapped" in problem.what for problem in directory.problems)


def test_absent_memory() -> None:
    """Half of a heap is missing, as in a truncated core. The other half is read."""
    image, target = make_damaged()
    cut = image.blocks["used"][1] - 0x40
    kept = [extent for extent in target._extents if extent.start != image.places.heap]
    heap = next(extent for extent in target._extents if extent.start == image.places.heap)
    target.set_extents(sorted([*kept, heap._replace(end=cut)]))
    directory, _ = read(target)
    assert any("absent" in problem.what or "cannot be read" in problem.what for problem in directory.problems)
    assert find_states(directory, image.blocks["used"][:1]) == {"IN_USE"}


def test_no_thread_pointer() -> None:
    """The thread cache is the first chunk of its arena. Without a thread pointer, it is searched there, and a warning is reported."""
    image = of_release((2, 36))
    target = image.build()
    target._threads = [fake.thread(7)]
    directory, glibc = read(target)
    assert find_states(directory, image.cached) == {"CACHED"}
    assert any("of 1 thread were not found" in problem.what for problem in directory.problems) and glibc.tcaches.unread == [7]


@pytest.mark.parametrize(("minor", "reported"), [(25, False), (36, True), (42, True)])
def test_no_threads(minor: int, reported: bool) -> None:
    """A core that was cut before its notes has no threads. The thread caches are not found, which is reported for each
    version of glibc that has them."""
    target = of_release((2, minor)).build()
    target._threads = []
    directory, _ = read(target)
    assert any("no thread is known, so no thread cache was found" in problem.what for problem in directory.problems) == reported


def test_only_zeros() -> None:
    target = fake.FakeTarget({0x10000: bytes(0x10000)}, names={0x10000: "/lib/libc.so.6"})
    assert not build_directory(target, PureEngine(target.arch)).allocators


def test_adding_to_packed_addresses() -> None:
    values = lists.array("Q", [0x7F00FFFFFFF0, 0x1000, 0xFFFF0])
    assert list(lists.add_to_each(values, 16)) == [value + 16 for value in values]


def test_locate() -> None:
    image = of_release((2, 36))
    _, glibc = read(image.build())
    arena = glibc.instance.arenas[1]
    reported = {
        image.main + 8: "main_arena",
        image.main - 0x920: "mp_",
        arena.top + 32: "top of arena 1",
        image.thread - 8: "heap_info",
        image.thread + 8: "arena header of arena 1",
        image.blocks["used"][0]: "",
        image.places.pointer + TCACHE_OFFSET: "",
    }
    assert {address: glibc.locate(address) for address in reported} == reported


@pytest.mark.parametrize("sizes", [(8, 8), (8, 16)], ids=["two", "wrong"])
@pytest.mark.parametrize(("arch", "align"), [(X86_64, 16), (BITS_32, 16), (BITS_32, 8)], ids=["x86-64", "i386", "arm"])
def test_fenceposts_end_where_alignment_permits(arch: Arch, align: int, sizes: tuple[int, int]) -> None:
    """Chunks of i386 end 8 bytes before the end of a page. Therefore, 8 bytes follow the fencepost of a heap, or of a
    contiguous part of the main arena."""
    word, end = arch.word, 0x20000000
    post = end - 4 * word - (end - 2 * word) % align
    assert (post + 2 * word) % align == 0
    first, second = (size * word // 4 for size in sizes)
    heads = {post + word: first | 1, post + 2 * word: second, post + 3 * word: 1}
    data = bytearray(4096)
    for address, value in heads.items():
        data[address - end + 4096 : address - end + 4096 + word] = arch.pack([value])
    memory = Memory(fake.FakeTarget({end - 4096: bytes(data)}, arch=arch))
    sound = first == second
    assert spans._find_heap_fence(memory, end - 4096, end, align) == (post if sound else end)
    data[post + 3 * word - end + 4096 : post + 4 * word - end + 4096] = arch.pack([second | 1])
    memory = Memory(fake.FakeTarget({end - 4096: bytes(data)}, arch=arch))
    assert layout.measure_fencepost(memory, post, align) == (end - post if sound else 0)
