"""Slabs, magazines and malloc's tags: kernel, twin, and the heap as it was made."""

from __future__ import annotations

import random
import struct
from array import array

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.umem import engine as slabs
from findleaks.allocators.umem.engine import CACHE, HASHED, OWN, USER, SlabRead
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Piece, Range

SEEDS = st.integers(0, 2**32 - 1)
ARCHES = st.sampled_from(graphs.MOSTLY_64)
PAGE = 4096
CLASSES = (8, 16, 32, 48, 64, 256, 1024)


def base_of(arch: Arch) -> int:
    return 0x7F0000010000 if arch.word == 8 else 0xB7010000


def wild(arch: Arch) -> tuple[int, ...]:
    base, top = base_of(arch), arch.mask + 1
    near = (base, base + 8, base + PAGE, base + PAGE - 7 * arch.word)
    return (0, 1, 8, *near, top - 8, top >> 1, 0x3A10C000, 0xDEADBEEF, (0x3A10BFF0 << 32 | 16) & arch.mask)


def both(arch: Arch = X86_64) -> list[Engine]:
    return [graphs.native(arch), graphs.pure(arch)]


def tag(size: int, tags: int) -> tuple[int, int]:
    """malloc()'s tag of a block: the size, what precedes the block included, and the status."""
    return size, (0x16BA7000 if tags == 16 else 0x3A10C000) - size & 0xFFFFFFFF


class Made:
    """Caches of every sort; each block's start, size and state are kept in `expected`."""

    def __init__(self, rng: random.Random, pages: int = 60, arch: Arch = X86_64) -> None:
        self.rng, self.arch, self.word, self.base = rng, arch, arch.word, base_of(arch)
        self.data = bytearray(rng.randbytes(pages * PAGE))
        self.next = 1  # page 0 has the null slabs
        self.pages = pages
        self.caches = array("Q")
        self.expected: list[tuple[int, int, int]] = []
        self.magazines: dict[int, list[int]] = {}
        for number in range(rng.randrange(1, 6)):
            self.cache(number)

    def put(self, at: int, *values: int) -> None:
        """Words."""
        packed = self.arch.pack(values)
        self.data[at - self.base : at - self.base + len(packed)] = packed

    def put32(self, at: int, *values: int) -> None:
        """Numbers of four bytes."""
        struct.pack_into(f"{self.arch.word_format[0]}{len(values)}I", self.data, at - self.base, *values)

    def cache(self, number: int) -> None:
        """One cache with its slabs; of malloc()'s classes, or with buffers as they are."""
        rng, address, nullslab, room = self.rng, (self.base & 0xFF000000) + PAGE * number, self.base + 64 * number, 7 * self.word
        size = rng.choice(CLASSES)
        own, hashed = rng.random() < 0.2, rng.random() < 0.4
        tags = 0 if own or rng.random() < 0.3 else 16 if size > 16 and self.word == 8 else 8
        buftag = (size + 7) // 8 * 8 if rng.random() < 0.3 else 0
        chunk = (size + 7) // 8 * 8 + (24 if buftag else 0)
        least = max((c for c in CLASSES if c < size), default=0)
        bufctl = 0 if hashed else buftag or chunk - 8
        made = []
        for _ in range(rng.randrange(4)):
            if self.next + 2 > self.pages:
                break
            page = self.base + PAGE * self.next
            self.next += 1
            chunks = rng.randrange(1, (PAGE - room) // chunk + 1)
            made.append((page + PAGE - room, page, chunks))
        ring = [nullslab, *(slab for slab, _, _ in made), nullslab]
        self.put(nullslab, address, 0, ring[1], ring[-2], 0, self.arch.mask, 0)
        for at, (slab, base, chunks) in enumerate(made, 1):
            free, refcnt = self.slab(number, base, chunks, chunk, (hashed, bufctl), (size, tags, least, buftag), own)
            self.put(slab, address, base, ring[at + 1], ring[at - 1], free, refcnt, chunks)
        flags = (HASHED if hashed else 0) | (OWN if own else 0)
        self.caches.extend((address, nullslab, ring[1], chunk, PAGE, bufctl, flags, size, tags, least, buftag))

    def slab(
        self, number: int, base: int, chunks: int, chunk: int, lists: tuple[bool, int], sizes: tuple[int, int, int, int], own: bool
    ) -> tuple[int, int]:
        """The buffers of a slab; the head of its free list, and how many are not on it."""
        rng, (size, tags, least, buftag), (hashed, bufctl) = self.rng, sizes, lists
        states = [rng.choice((State.IN_USE, State.IN_USE, State.CACHED, State.FREE)) for _ in range(chunks)]
        direct = tags > 0 and rng.random() < 0.2  # the program calls umem_alloc() itself
        control = base + chunk * chunks  # bufctls stand behind, where there is room
        hashed_room = hashed and control + 16 * chunks <= base + PAGE - 7 * self.word
        if hashed and not hashed_room:
            states = [State.IN_USE if state == State.FREE else state for state in states]
        used = State.IN_USE in states
        links = []
        for index, state in enumerate(states):
            buffer = base + index * chunk
            self.put32(buffer, *[0x41414141] * (chunk // 4))
            start, usable = buffer + tags, size - tags
            if state == State.IN_USE and tags and not direct:
                usable = rng.randrange(max(least + 1, tags), size + 1) - tags
                self.put32(buffer + tags - 8, *tag(usable + tags, tags))
            elif state == State.IN_USE and direct:
                start, usable = buffer, size
                if buftag:
                    usable = rng.randrange(1, size + 1)
                    self.put32(buffer + buftag, 0xFEEDFACE, usable * 251 + 1)
            elif direct and used:
                start, usable = buffer, size  # so are the others of such a slab
            if state == State.CACHED and not own:
                self.magazines.setdefault(number, []).append(buffer)
            if state == State.FREE:
                links.append((control + 16 * index if hashed else buffer + bufctl, buffer))
            if not own:
                self.expected.append((start, usable, State.IN_USE if own and state == State.CACHED else state))
        rng.shuffle(links)
        for (link, buffer), (after, _) in zip(links, [*links[1:], (0, 0)]):
            self.put(link, after)
            if hashed:
                self.put(link + self.word, buffer)
        return links[0][0] if links else 0, chunks - len(links)


Found = list[tuple[int, int, int]]


def everything(
    engine: Engine, pieces: list[Piece], caches: array[int], magazines: dict[int, list[int]], enough: int
) -> tuple[SlabRead, list[list[tuple[int, int]]], list[array[int]], Found]:
    """All that the calls say: the slabs, what is wrong with magazines and with buffers, and the blocks."""
    base = base_of(engine.arch)
    regions = [Range(base, base + 30 * PAGE), Range(base + 30 * PAGE, base + 70 * PAGE)]
    read = slabs.loops(engine).read_slabs(engine, pieces, caches, regions)
    wrong = [slabs.loops(engine).mark_cached(engine, read, number, buffers) for number, buffers in sorted(magazines.items())]
    blocks, troubles, at, last = engine.blocks(engine.arch, 8), [], 0, len(read.users) // USER
    while at < last:
        part = slabs.loops(engine).read_buffers(engine, blocks, pieces, read, at, last, enough)
        assert at < part.next <= last
        troubles.append(part.troubles)
        at = part.next
    blocks.seal()
    found = [(blocks.address(number), blocks.size(number), int(blocks.state(number))) for number in range(len(blocks))]
    return read, wrong, troubles, found


@given(seed=SEEDS, arch=ARCHES)
@settings(max_examples=graphs.share(200))
def test_blocks_of_slabs(seed: int, arch: Arch) -> None:
    rng = random.Random(seed)
    made = Made(rng, arch=arch)
    pieces = graphs.cut(made.base, bytes(made.data), rng)
    enough = rng.randrange(1, 300)
    for engine in both(arch):
        read, wrong, troubles, found = everything(engine, pieces, made.caches, made.magazines, enough)
        assert not read.wrong
        assert not any(wrong)
        assert found == sorted(made.expected)
        assert not any(len(each) for each in troubles)
        assert sum(read.sums[::2]) == len(found)
        assert sum(read.sums[1::2]) == sum(size for _, size, _ in found)


@given(seed=SEEDS, arch=ARCHES)
@settings(max_examples=graphs.share(400))
def test_kernel_and_twin_agree_on_damage(seed: int, arch: Arch) -> None:
    rng = random.Random(seed)
    made = Made(rng, arch=arch)
    word, base, odd = arch.word, made.base, wild(arch)
    slots = [base + page * PAGE - word * at for page in range(2, 61) for at in range(1, 8)] + [base + 8 * at for at in range(40)]
    for _ in range(rng.randrange(1, 12)):
        place = rng.choice((rng.choice(slots), base + PAGE * rng.randrange(1, 60) + 8 * rng.randrange(40), base + 8 * rng.randrange(40)))
        value = rng.choice((*odd, rng.choice(slots), place & -PAGE, base + 8 * rng.randrange(60 * 512), rng.randrange(300)))
        made.put(place, value)
    for number, buffers in made.magazines.items():
        for _ in range(rng.randrange(3)):
            buffers.insert(rng.randrange(len(buffers) + 1), rng.choice((*odd, rng.choice(buffers), buffers[0] + 8 & arch.mask)))
        made.magazines[number] = buffers
    if rng.random() < 0.3:  # a cache's own numbers, within what the caller sees to
        at = CACHE * rng.randrange(len(made.caches) // CACHE)
        made.caches[at + rng.choice((0, 1, 2, 5, 9, 10))] = rng.choice(odd)
        made.caches[at + 4] = rng.choice((PAGE, arch.mask >> 24, arch.mask))
    data = bytes(made.data)
    whole = [graphs.piece(base, data)]
    holes = [piece for piece in graphs.cut(base, data, rng, rng.choice((8, 4, PAGE))) if rng.random() < 0.8]
    for pieces in (whole, holes):
        one, other = (everything(engine, pieces, made.caches, made.magazines, 100) for engine in both(arch))
        assert one == other


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize("loop", [0, 1, 5])
def test_a_list_that_comes_back_elsewhere(loop: int, arch: Arch) -> None:
    """Slabs up to the one that is met twice are read, once."""
    data, base, room = bytearray(PAGE * 10), base_of(arch), 7 * arch.word
    address, null = base & 0xFF000000, base
    slabs_at = [base + PAGE * (page + 1) - room for page in range(1, 8)]
    for at, slab in enumerate(slabs_at):
        after = slabs_at[at + 1] if at + 1 < len(slabs_at) else slabs_at[loop]
        data[slab - base : slab - base + room] = arch.pack((address, slab & -PAGE, after, 0, 0, 0, 5))
    caches = array("Q", (address, null, slabs_at[0], 64, PAGE, 56, 0, 64, 0, 0, 0))
    for engine in both(arch):
        read = slabs.loops(engine).read_slabs(engine, [graphs.piece(base, data)], caches, [Range(base, base + len(data))])
        assert [wrong.code for wrong in read.wrong] == [slabs.LIST]
        assert read.wrong[0].why == f"the list runs into itself at {slabs_at[loop]:#x} after 7 nodes"
        assert len(read.users) == 7 * USER
        assert len(read.states) == 35


def test_no_caches_at_all() -> None:
    for engine in both():
        read = slabs.loops(engine).read_slabs(engine, [], array("Q"), [])
        assert (len(read.records), len(read.users), read.wrong) == (0, 0, [])
        blocks = engine.blocks(X86_64, 8)
        assert slabs.loops(engine).read_buffers(engine, blocks, [], read, 0, 5, 10).next == 0
        assert not len(blocks)


def test_blocks_below_others() -> None:
    """Slabs are appended above what is there, or not at all."""
    made = next(made for made in (Made(random.Random(seed)) for seed in range(100)) if made.expected)
    for engine in both():
        pieces = [graphs.piece(made.base, made.data)]
        read = slabs.loops(engine).read_slabs(engine, pieces, made.caches, [Range(made.base, made.base + 70 * PAGE)])
        blocks = engine.blocks(X86_64, 8)
        blocks.append([made.expected[-1][0] + (1 << 20)], [8], [State.IN_USE])
        with pytest.raises(ValueError, match="above"):
            slabs.loops(engine).read_buffers(engine, blocks, pieces, read, 0, 1, 10)
        blocks.seal()
        with pytest.raises(RuntimeError):
            slabs.loops(engine).read_buffers(engine, blocks, pieces, read, 0, 1, 10)
