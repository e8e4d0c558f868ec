"""libumem's caches, slabs, magazines, tags and arenas, on images built from its documented structures (tests/support/umemimage.py)."""

from __future__ import annotations

import struct

import pytest
from fake import FakeTarget
from umemimage import CLASSES, DATA, DATA_SIZE, DEBUG, HASH, HEAP, HEAP_SIZE, PAGE, STACK, UmemImage, read

from findleaks.allocators import umem
from findleaks.allocators.directory import Directory
from findleaks.allocators.nesting import Owned
from findleaks.allocators.umem.walk import _large_tag
from findleaks.audit.cache_sites import class_sites
from findleaks.audit.caches import holdings
from findleaks.engine import load as engine
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.session import Session
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import Module

BOTH = pytest.mark.parametrize("pure", [False, True], ids=("kernel", "pure"))
MODES = pytest.mark.parametrize("debug", [0, 2 | 4, DEBUG, 0x1], ids=("normal", "guards", "default", "audit"))


def held(blocks: Blocks) -> dict[int, tuple[int, State]]:
    return {blocks.address(i): (blocks.size(i), blocks.state(i)) for i in range(len(blocks))}


def used(blocks: Blocks) -> dict[int, int]:
    return {address: size for address, (size, state) in held(blocks).items() if state == State.IN_USE}


@pytest.mark.platform("x86-64", "libumem", of="images of its structures")
@pytest.mark.platform("AArch64", "libumem", of="images of its structures")
@BOTH
@MODES
@pytest.mark.parametrize(
    ("mutex", "cond", "arch"), [(40, 48, X86_64), (24, 16, X86_64), (48, 48, AARCH64)], ids=("glibc", "Solaris", "glibc, AArch64")
)
def test_blocks_are_what_malloc_returned(mutex: int, cond: int, arch: Arch, debug: int, pure: bool) -> None:
    image = UmemImage(mutex, cond, debug)
    sizes = [0, 1, 8, 9, 16, 17, 24, 32, 100, 112, 500, 1000, 4080, 16000, 16368, 16369, 70000]
    wanted = {image.malloc(size): size for size in sizes}
    wanted.update({image.memalign(align, size): size for align, size in ((64, 40), (4096, 100), (256, 5000))})
    found, blocks = read(image.target(arch=arch), pure)
    assert found.problems == []
    assert used(blocks) == wanted
    assert list(found.verify(blocks)) == []
    assert (found.name, found.where) == ("libumem", "libumem.so.1")


@BOTH
@MODES
def test_what_is_freed_is_not_in_use(debug: int, pure: bool) -> None:
    image = UmemImage(debug=debug)
    kept = {image.malloc(100): 100 for _ in range(40)}
    gone = [image.malloc(100) for _ in range(13)]
    ways = ["slab"] * 4 + ["loaded"] * 3 + ["ploaded"] * 2 + ["depot"] * 4
    for number, (block, way) in enumerate(zip(gone, ways)):
        image.release(block - 16, 8, way, cpu=number % 2)
    found, blocks = read(image.target(), pure)
    states = held(blocks)
    assert found.problems == []
    assert used(blocks) == kept
    assert [states[block][1] for block in gone] == [State.FREE] * 4 + [State.CACHED] * 9
    assert list(found.verify(blocks)) == []
    row = next(row for row in found.caches(blocks) if row.name == "umem_alloc_128")
    assert (row.size, row.in_use, row.cached, row.in_use_bytes) == (128, 40, 9, 4000)


@BOTH
@MODES
def test_rows_are_those_of_umastat(debug: int, pure: bool) -> None:
    image = UmemImage(debug=debug)
    for size in (4, 20, 20, 60, 200, 900, 3000, 40000, 90000):
        image.malloc(size)
    image.memalign(64, 300)
    image.named("umem_alloc_1024").fails = 7
    found, blocks = read(image.target(), pure)
    rows = {row.name: row for row in found.caches(blocks)}
    for cache in image.caches[1:]:
        if cache.slabs:
            row, total = rows.pop(cache.name), sum(slab.chunks for slab in cache.slabs)
            out = total - sum(len(slab.free) for slab in cache.slabs)
            assert (row.size, row.total, row.in_use) == (cache.bufsize, total, out)
            assert (row.memory, row.fails) == (len(cache.slabs) * cache.slabsize, cache.fails)
            assert row.allocs == out + 10 + 11  # from slabs, and from the magazines of both CPUs
    assert {(row.name, row.in_use, row.in_use_bytes) for row in rows.values()} == {
        ("umem_oversize", 2, 130000),
        ("umem_memalign", 1, 300),
    }
    rows = {row.name: row for row in found.caches(blocks)}
    assert sum(row.total for row in rows.values()) == len(blocks)
    assert found.counted()["cache_buftotal"] == sum(row.total for row in rows.values() if row.size)
    assert found.counted()["vk_mem_inuse"] == 130000 + 2 * 16 + 300 + 16
    assert found.counted()["vk_segments"] == 3
    arenas = {arena.name: arena for arena in found.arenas(blocks)}
    assert arenas["mmap_top"].mapped == arenas["mmap_top"].in_use == HEAP_SIZE
    assert arenas["umem_oversize"].own["vk_fail"] == 2
    assert all(arena.in_use + arena.free == arena.mapped for arena in arenas.values())


@MODES
def test_a_program_that_calls_umem_alloc_itself(debug: int) -> None:
    """No tags of malloc's: a block is the buffer; what was asked for is known where the cache debugs."""
    image = UmemImage(debug=debug)
    reported = bool(debug & 6)
    wanted = {}
    for size in (5, 20, 30, 100, 700):
        buffer = image.umem_alloc(size)
        wanted[buffer] = size if reported else next(c for c in CLASSES if c >= size)
    wanted[image.umem_alloc(50000)] = 50000
    own = image.cache("conn_cache", 72)
    wanted[image.alloc(own)] = 72
    found, blocks = read(image.target())
    assert used(blocks) == wanted
    assert found.problems == []


def test_malloc_and_umem_alloc_share_a_class() -> None:
    image = UmemImage()
    wanted = {image.malloc(40): 40, image.umem_alloc(60): 64, image.malloc(48): 48}
    assert used(read(image.target())[1]) == wanted


def test_arenas_of_the_program() -> None:
    """One over libumem's heap hands out memory; one of numbers does not, nor does a cache over it."""
    image = UmemImage()
    image.arena("pool", "mmap_heap")
    image.arena("ids")
    image.named_arena("ids").segments = [(1, 1001, 16), (1, 5, 1), (5, 1001, 2)]
    numbers = image.cache("ids_1", 1, arena="ids", flags=HASH, cflags=0x100000 | 0x10000)
    assert numbers.arena == image.arenas[-1].address
    block = image.segment("pool", 12288, 0)
    found, blocks = read(image.target())
    assert held(blocks) == {block: (12288, State.IN_USE)}
    assert found.problems == []
    assert [row.name for row in found.caches(blocks) if row.total] == ["pool"]


def test_own_structures_are_neither_blocks_nor_roots() -> None:
    image = UmemImage(debug=DEBUG)
    image.malloc(100)
    target = image.target()
    found, blocks = read(target)
    (heap,) = found.heaps()
    owned = [Owned(heap, found, heap.start, heap.end)]
    claimed = Directory([found], blocks, owned, []).claimed()
    places = [image.null, image.null + 400, *(arena.address for arena in image.arenas), DATA + 0xA000, HEAP, HEAP + 0x100]
    for place in places:
        assert any(start <= place < end for start, end in claimed), hex(place)
    assert not any(start <= DATA + 0x100 < end for start, end in claimed)
    assert len(used(blocks)) == 1
    assert [cache.name for cache in found.kept if cache.own] == ["umem_bufctl_audit_cache"]


@pytest.mark.parametrize("debug", [DEBUG, 0x1], ids=("default", "audit"))
def test_who_allocated_a_block(debug: int) -> None:
    image = UmemImage(debug=debug)
    blocks = [image.malloc(100) for _ in range(3)]
    found, _ = read(image.target())
    stacks = [found.stack(block) for block in blocks]
    indices = [image.owner(block - 16)[2] for block in blocks]
    assert stacks == [(1000 + index, 0x7F00DEAD0000, list(STACK)) for index in indices]
    assert found.stack(blocks[0] + 50) == stacks[0]
    assert found.stack(HEAP) is None
    assert "umem_alloc_128, last transaction by thread 0x7f00dead0000" in found.locate(blocks[0])


def test_nobody_knows_who_allocated_without_audit() -> None:
    image = UmemImage(debug=2 | 4)
    block = image.malloc(100)
    found, _ = read(image.target())
    assert found.stack(block) is None
    assert found.locate(block) == f"buffer {block - 16:#x} of umem_alloc_128"
    assert found.locate(image.null) == "umem_null_cache"
    assert found.locate(image.named("umem_alloc_16").address + 8) == "umem_cache umem_alloc_16"
    assert found.locate(image.named_arena("umem_oversize").address) == "vmem arena umem_oversize"
    assert found.locate(0x1234) == ""


def test_requests_beyond_4_gib_have_another_tag() -> None:
    size = (5 << 32) + 100
    low = size & 0xFFFFFFFF
    assert _large_tag((5, 0x3A10C000 - 5, low, (0x06E47000 - low) % (1 << 32)), 8) == (16, size)
    assert _large_tag((5, 0x3A10C000 - 6, low, (0x06E47000 - low) % (1 << 32)), 8) == (0, 0)
    assert _large_tag((100, 0x3A10C000 - 100, 0, 0), 4) == (8, 100)


def test_nothing_is_found_where_nothing_is() -> None:
    """Without the name; with the name as mere text; and in a library that was loaded and not used."""
    image = UmemImage()
    target = image.target()
    at = engine.load(target.arch)
    target.write(image.null + 88, b"invalid_cashe")
    assert umem.find(target, at, []) == []

    text = bytearray(DATA_SIZE)
    text[0x800:0x80E] = b"invalid_cache\0"
    module = Module("/bin/other", DATA, DATA, DATA + DATA_SIZE)
    assert umem.find(FakeTarget({DATA: bytes(text)}, names={DATA: "/bin/other"}, modules=[module]), at, []) == []

    unused = UmemImage()
    unused.caches = []
    unused.arenas = []
    unused.finish_arenas = lambda: None  # type: ignore[method-assign]
    assert umem.find(unused.target(), at, []) == []


def test_in_a_core_that_names_no_files() -> None:
    image = UmemImage()
    block = image.malloc(100)
    target = image.target()
    regions = FakeTarget({DATA: target.read(DATA, DATA_SIZE), HEAP: target.read(HEAP, HEAP_SIZE)}, modules=target.modules())
    assert used(read(regions)[1]) == {block: 100}


def test_another_layout_is_named_and_not_read() -> None:
    """Four counters more a cache, as in gburd/libumem 2."""
    null, other = DATA + 0x1000, HEAP + 0x100
    memory = {DATA: bytearray(DATA_SIZE), HEAP: bytearray(PAGE)}
    for base, at in ((null, 0x1000), (other, 0x100)):
        data = memory[DATA if base == null else HEAP]
        data[at + 120 : at + 134] = b"invalid_cache\0" if base == null else b"umem_alloc_64\0"
        data[at + 224 : at + 240] = struct.pack("<QQ", *([other] * 2 if base == null else [null] * 2))
    module = Module("/usr/lib/libumem.so", DATA, DATA, DATA + DATA_SIZE)
    target = FakeTarget({start: bytes(data) for start, data in memory.items()}, names={DATA: module.path}, modules=[module])
    (found,) = umem.find(target, engine.load(target.arch), [])
    assert list(found.heaps()) == []
    (problem,) = found.problems
    assert (problem.address, problem.corrupt) == (null, False)
    assert "libumem in libumem.so has another layout (15 counters a cache): its blocks are not seen" in problem.what
    target.write_word(other + 232, 0)
    assert umem.find(target, engine.load(target.arch), []) == []


def test_ctrl_c_is_looked_at() -> None:
    image = UmemImage(debug=DEBUG)
    for _ in range(200):
        image.malloc(1000)
    target = image.target()
    found, blocks = read(target)
    target._left = 3
    with pytest.raises(Interrupted):
        list(found.verify(blocks))
    target._left = 0
    with pytest.raises(Interrupted):
        read(target)


@pytest.mark.parametrize("pure", [False, True], ids=("kernel", "python"))
@pytest.mark.parametrize("debug", [DEBUG, 0x1], ids=("default", "audit"))
def test_sites(debug: int, pure: bool) -> None:
    """Each block in use with the stack in its bufctl; of what cannot be read, one warning a record."""
    image = UmemImage(debug=debug)
    blocks = [image.malloc(100) for _ in range(5)] + [image.malloc(3)]
    own = image.umem_alloc(1000)
    image.release(blocks[0] - 16, 8)
    image.release(blocks[1] - 16, 8, "loaded")
    _, slab, index = image.owner(blocks[2] - 16)
    target = image.target()
    target.write_word(slab.bufctls[index] + 64, 1 << 30)
    found, index_of = read(target, pure)
    assert found.recorded
    (recorded,) = found.recordings(index_of)
    assert list(recorded.addresses) == sorted([*blocks[3:], own])
    assert [(site.frames, site.live.blocks) for site in recorded.sites] == [(STACK, 4)]
    assert len(recorded.warnings) == 1 and hex(blocks[2] - 16) in recorded.warnings[0]
    sizes = [index_of.size(index_of.find(address)) for address in recorded.addresses]
    assert recorded.sites[0].live.bytes == sum(sizes)


def test_no_sites_without_audit() -> None:
    image = UmemImage(debug=2 | 4)
    image.malloc(100)
    found, blocks = read(image.target())
    assert found.recordings(blocks) == [] and not found.recorded


def test_stacks_of_each_class() -> None:
    """Blocks are listed in the cache they are of: malloc's have a header, and two caches may have buffers of one size."""
    image = UmemImage(debug=DEBUG)
    orders = image.cache("orders", 112)
    for _ in range(3):
        image.malloc(90)
    image.alloc(orders, 112)
    session = Session(image.target())
    held_by = holdings(session)
    found = {one.name: (one.size, one.live.blocks) for one in class_sites(session, held_by)}
    rows = {cache.name: (cache.size, cache.in_use) for one in held_by for cache in one.caches if cache.in_use}
    assert found == rows and rows["orders"] == (112, 1)
