"""Both engines read the same slabs, magazines and first chunks: all of an intact GSlice heap, and some of a damaged one."""

from __future__ import annotations

import random
from array import array
from typing import NamedTuple

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.gslice.engine import OVERLAPS, chunk_starts, read_magazines, read_slabs
from findleaks.allocators.type_nodes import InstanceType
from findleaks.engine.contract import Engine
from findleaks.engine.terms import RUN
from findleaks.target.arch import ARM, S390X, X86_64, Arch
from findleaks.target.base import Piece

BASE, SIZE = 0x10000, 0x10000
CLASSES = 12
ARCHES = [X86_64, ARM, S390X]


class Slab(NamedTuple):
    start: int
    chunk: int
    info: int
    shift: int
    choices: int


class Image:
    """Slabs of several chunk sizes at random addresses. The first chunk of a slab is at a random offset. `slabs` is the expected result."""

    def __init__(self, arch: Arch, seed: int) -> None:
        self.arch, self.rng, self.data = arch, random.Random(seed), bytearray(SIZE)
        self.heads, self.slabs = [0] * CLASSES, list[Slab]()
        word, at = arch.word, BASE + 0x400
        rings: dict[int, list[int]] = {}
        while at < BASE + SIZE - 0x2000:
            number = self.rng.randrange(CLASSES)
            chunk, page = 2 * word * (number + 1), 128
            while page < 8 * chunk + 6 * word:
                page *= 2
            start = -(-at // page) * page
            info = start + page - 6 * word
            choices = max(1, (info - start) % chunk // (2 * word))
            self.slabs.append(Slab(start, chunk, info, 2 * word * self.rng.randrange(choices), choices))
            rings.setdefault(number, []).append(info)
            at = start + page + self.rng.choice((0, 0, 64, 500))
        for number, infos in rings.items():
            self.rng.shuffle(infos)
            self.heads[number] = infos[0]
            for info, following in zip(infos, infos[1:] + infos[:1]):
                self.put(info + 2 * word, following)
                self.put(following + 3 * word, info)

    def put(self, address: int, value: int) -> None:
        at = address - BASE
        self.data[at : at + self.arch.word] = value.to_bytes(self.arch.word, self.arch.byteorder)

    def chunks(self, slab: Slab) -> list[int]:
        first = slab.start + slab.shift
        return [first + slab.chunk * number for number in range((slab.info - slab.start) // slab.chunk)]

    def chain(self, chunks: list[int]) -> int:
        """Link chunks by their first words, and return the first chunk."""
        for chunk, following in zip(chunks, [*chunks[1:], 0]):
            self.put(chunk, following)
        return chunks[0] if chunks else 0

    def pieces(self) -> tuple[Piece, ...]:
        middle = SIZE // 2
        return Piece(BASE, memoryview(self.data)[:middle]), Piece(BASE + middle, memoryview(self.data)[middle:])


def engines(arch: Arch) -> tuple[Engine, Engine]:
    return graphs.native(arch), graphs.pure(arch)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_intact_slabs(arch: Arch, seed: int) -> None:
    """The start of a slab is derived from its free chunks, or else from the chunks of a magazine, an instance, or
    pointers, even if some pointers point into chunks."""
    image = Image(arch, seed)
    free, cached, known = set[int](), list[int](), {}
    one = InstanceType(0, BASE + SIZE + 0x100, arch.word, 2 * arch.word, 80)
    scratch = BASE
    for slab in image.slabs:
        chunks = image.chunks(slab)
        image.rng.shuffle(chunks)
        evidence = image.rng.choice(("free", "cached", "instance", "pointers", "none"))
        known[slab.start] = evidence != "none" or slab.choices == 1
        if evidence == "free":
            some = chunks[: image.rng.randrange(1, len(chunks))]
            image.put(slab.info, image.chain(some))
            free.update(some)
        elif evidence == "cached":
            cached.append(chunks[0])
        elif evidence == "instance" and slab.chunk >= one.private + one.size:
            image.put(chunks[0] + one.private, one.class_address)
        elif scratch < BASE + 0x380:
            for value in (chunks[0], chunks[1], chunks[0] + 2 * arch.word if slab.chunk > 2 * arch.word else chunks[2], chunks[0] + 1):
                image.put(scratch, value)
                scratch += arch.word
        else:
            known[slab.start] = slab.choices == 1
    for engine in engines(arch):
        read = read_slabs(engine, image.pieces(), image.heads)
        assert not read.broken and set(read.free) == free
        assert list(read.ranges) == [at for slab in image.slabs for at in (slab.start, slab.info + 4 * arch.word)]
        starts = chunk_starts(engine, read)
        starts.count_chunks(array("Q", cached))
        starts.elect()
        for piece in image.pieces():
            starts.count_instances(piece, [one])
        starts.elect()
        for piece in image.pieces():
            starts.count_pointers(piece)
        left = starts.elect()
        assert left == sum(choices > 1 for choices in read.choices)
        for number, slab in enumerate(image.slabs):
            start, stride, size, count = read.runs[RUN * number : RUN * number + 4]
            assert (stride, size, count) == (slab.chunk, slab.chunk, (slab.info - slab.start) // slab.chunk)
            assert not known[slab.start] or start == slab.start + slab.shift, slab


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@given(seed=st.integers(0, 2**32 - 1), damage=st.integers(0, 40))
@settings(max_examples=25)
def test_damaged_slabs(arch: Arch, seed: int, damage: int) -> None:
    """Both engines return the same results for a damaged heap, and no two slabs overlap."""
    image = Image(arch, seed)
    rng, word = image.rng, arch.word
    for slab in image.slabs:
        image.put(slab.info, image.chain(rng.sample(image.chunks(slab), rng.randrange(0, 4))))
    for _ in range(damage):
        target = rng.choice(image.slabs)
        image.put(
            target.info + word * rng.randrange(4),
            rng.choice((0, 1, rng.choice(image.slabs).info, rng.choice(image.slabs).start, arch.mask)),
        )
    if damage % 3 == 1:
        image.heads[rng.randrange(CLASSES)] = rng.choice((8, arch.mask, *image.heads))
    heads = [rng.choice((*image.chunks(rng.choice(image.slabs)), 0, 8)) for _ in range(5)]
    one = InstanceType(0, BASE + SIZE + 0x100, word, 2 * word * rng.randrange(4), 2 * word * rng.randrange(1, 8))
    for _ in range(damage):
        image.put(BASE + word * rng.randrange(SIZE // word), one.class_address)
    results = []
    for engine in engines(arch):
        read = read_slabs(engine, image.pieces(), image.heads)
        bounds = list(read.ranges)
        assert bounds == sorted(bounds)
        results.append((read, read_magazines(engine, image.pieces(), heads[:2], heads[2:], 50)))
        starts = chunk_starts(engine, read)
        for piece in image.pieces():
            starts.count_instances(piece, [one])
        starts.elect()
        for piece in image.pieces():
            starts.count_pointers(piece)
        starts.elect()
        for piece in image.pieces():
            starts.count_edges(piece)
        starts.elect()
    assert results[0] == results[1]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_slabs_of_leaked_chunks(arch: Arch, seed: int) -> None:
    """Nothing refers to the chunks. In each chunk, the first word is a number and the last two words are zero. Memory
    before and after the chunks is zero."""
    image = Image(arch, seed)
    for slab in image.slabs:
        for chunk in image.chunks(slab):
            image.put(chunk, 5)
    for engine in engines(arch):
        read = read_slabs(engine, image.pieces(), image.heads)
        starts = chunk_starts(engine, read)
        for piece in image.pieces():
            starts.count_edges(piece)
        assert not starts.elect()
        for number, slab in enumerate(image.slabs):
            assert slab.choices == 1 or read.runs[RUN * number] == slab.start + slab.shift, slab


def test_overlapping_slabs() -> None:
    """The rings of two chunk sizes claim the same slab, whose size is right for both. It belongs to neither."""
    image = Image(X86_64, 1)
    same = next(slab for slab in image.slabs if slab.chunk == 48)  # 512 bytes, the size of slabs with chunks of 32 bytes
    image.put(same.info + 16, same.info)
    image.put(same.info + 24, same.info)
    image.heads = [0, same.info, same.info] + [0] * (CLASSES - 3)
    for engine in engines(X86_64):
        read = read_slabs(engine, image.pieces(), image.heads)
        assert not read.ranges and list(read.broken) == [OVERLAPS, same.start]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_magazines(arch: Arch) -> None:
    """The chunks of a thread's magazine and of a ring of magazines. In a ring, the second words of the magazines' first
    chunks are links of the ring, and not lists."""
    image, word = Image(arch, 7), arch.word
    slabs = [slab for slab in image.slabs if (slab.info - slab.start) // slab.chunk >= 8][:4]
    own, first, second, further = (image.chunks(slab)[:7] for slab in slabs)
    for chunks in (own, first, second):
        image.chain(chunks)
    image.chain(further)
    image.put(own[2] + word, further[0])
    for one, other in ((first, second), (second, first)):
        for at, value in enumerate((other[0], 99, other[0], len(one))):
            image.put(one[at] + word, value)
    for engine in engines(arch):
        found, troubles = read_magazines(engine, image.pieces(), [own[0]], [first[0], 0], 100)
        assert sorted(found) == sorted(own + first + second + further) and not troubles
        found, _ = read_magazines(engine, image.pieces(), [], [first[0]], 1)
        assert list(found) == first[:1]
    image.put(own[6], own[1])
    for engine in engines(arch):
        assert read_magazines(engine, image.pieces(), [own[0]], [], 100)[1]


def cache_chunks(image: Image) -> tuple[list[int], list[int], list[int]]:
    """Put a magazine of random chunks into each slab. It belongs to a thread or to one of two rings, or it is a further list of such a
    magazine. Return the heads of the threads' magazines, the heads of the rings, and all chunks."""
    rng, word = image.rng, image.arch.word
    magazines = [rng.sample(image.chunks(slab), rng.randrange(5, 9)) for slab in image.slabs]
    for chunks in magazines:
        image.chain(chunks)
        for chunk in chunks:
            image.put(chunk + word, 0)
    own, first, second, further, more = (magazines[part::5] for part in range(5))
    for chunks, others in zip(own, further):
        image.put(rng.choice(chunks) + word, others[0])
    for chunks, others in zip(first, more):
        image.put(rng.choice(chunks[4:]) + word, others[0])
    for ring in (first, second):
        for before, chunks, after in zip(ring[-1:] + ring[:-1], ring, ring[1:] + ring[:1]):
            for chunk, value in zip(chunks, (before[0], 99, after[0], len(chunks))):
                image.put(chunk + word, value)
    return [chunks[0] for chunks in own], [first[0][0], 0, second[0][0]], [chunk for chunks in magazines for chunk in chunks]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@given(seed=st.integers(0, 2**32 - 1), damage=st.integers(1, 30))
@settings(max_examples=25)
def test_damaged_magazines(arch: Arch, seed: int, damage: int) -> None:
    """Both engines read each chunk of intact magazines once. For damaged magazines, both return the same chunks and problems."""
    image = Image(arch, seed)
    rng, word = image.rng, arch.word
    own, rings, chunks = cache_chunks(image)
    for engine in engines(arch):
        found, troubles = read_magazines(engine, image.pieces(), own, rings, len(chunks))
        assert sorted(found) == sorted(chunks) and not troubles
    for _ in range(damage):
        values = (0, 1, word, arch.mask, BASE + SIZE - word, BASE + SIZE, rng.choice(chunks), rng.choice(chunks) + word)
        image.put(rng.choice(chunks) + rng.choice((0, word)), rng.choice(values))
    own.append(rng.choice((8, arch.mask, BASE + SIZE - word, rng.choice(chunks))))
    rings.append(rng.choice((8, arch.mask, BASE + SIZE - word, rng.choice(chunks))))
    for most in (len(chunks), rng.randrange(20)):
        results = [read_magazines(engine, image.pieces(), own, rings, most) for engine in engines(arch)]
        assert results[0] == results[1]
        assert len(results[0][0]) <= 2 * SIZE // word  # each chunk at most twice: in a magazine and in a further list


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_many_magazines(arch: Arch) -> None:
    """Each slab has two magazines of threads with two chunks each. The second word of the first of these chunks leads to two more chunks.
    Every tenth magazine is damaged: its second chunk leads back to the first one."""
    image, word = Image(arch, 11), arch.word
    parts = [chunks[at : at + 4] for chunks in map(image.chunks, image.slabs) for at in (0, 4) if len(chunks) >= at + 4]
    assert len(parts) > 40
    for number, chunks in enumerate(parts):
        for chunk in chunks:
            image.put(chunk + word, 0)
        image.chain(chunks[:2])
        image.put(chunks[0] + word, image.chain(chunks[2:]))
        if number % 10 == 0:
            image.put(chunks[1], chunks[0])
    heads = [chunks[0] for chunks in parts]
    for engine in engines(arch):
        found, troubles = read_magazines(engine, image.pieces(), heads, [], 10_000)
        assert list(found) == [chunk for part in (slice(2), slice(2, 4)) for chunks in parts for chunk in chunks[part]]
        assert [head for head, _ in troubles] == heads[::10]
        assert all("2" in why for _, why in troubles), troubles


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_instances_outside_of_slabs(arch: Arch) -> None:
    """A word of a class after the last chunk of a slab is no evidence, although the private data of the instance would begin in the
    slab."""
    image, word = Image(arch, 5), arch.word
    unknown = [slab for slab in image.slabs if slab.choices > 1]
    one = InstanceType(0, BASE + SIZE + 0x100, 2 * word, 8 * word, 0)
    for slab in unknown:
        image.put(slab.info + 4 * word, one.class_address)
    for engine in engines(arch):
        read = read_slabs(engine, image.pieces(), image.heads)
        starts = chunk_starts(engine, read)
        for piece in image.pieces():
            starts.count_instances(piece, [one])
        assert starts.elect() == len(unknown) > 3


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_ring_that_never_returns(arch: Arch) -> None:
    """If a ring does not lead back to its head, the walk over it stops at the limit. All magazines of the other ring are read."""
    image, word = Image(arch, 3), arch.word
    slabs = [image.chunks(slab)[:5] for slab in image.slabs[:5]]
    for chunks, after in zip(slabs, (slabs[1], slabs[1], slabs[3], slabs[4], slabs[2])):  # chunks 0, 1, 1, ...; then 2, 3, 4
        image.chain(chunks)
        image.put(chunks[2] + word, after[0])
    for engine in engines(arch):
        found, troubles = read_magazines(engine, image.pieces(), [], [slabs[0][0], slabs[2][0]], 25)
        assert set(found) == {chunk for chunks in slabs for chunk in chunks} and not troubles
        assert len(found) == 25 * 5
