"""Damaged records of allocation stacks are reported with their addresses. All other records are used."""

from __future__ import annotations

import pytest
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from profileimage import BLOCK, HEADS, HEAP, STACKS, TABLE, Profile

from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording
from findleaks.allocators.tcmalloc import heap_profile
from findleaks.allocators.tcmalloc.heap_profile import LAYOUTS, Layout
from findleaks.allocators.tcmalloc.layout import IN_USE
from findleaks.allocators.tcmalloc.sites import of_profile, of_samples
from findleaks.allocators.tcmalloc.spans import Span
from findleaks.engine.load import load
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64

ENGINE = load(X86_64)
SOUND = Profile()
WILD = 0x4141414141414140
WORDS = sorted(set(SOUND.words))
LINKS = {name: at for name, at in SOUND.at.items() if not name.startswith("bucket ")}


def read_stacks(image: Profile, damage: dict[int, int]) -> tuple[dict[int, int], Recording | None]:
    """Return the number of each block's stack after these words were written over the image."""
    target = image.target()
    for address, value in damage.items():
        target.write_word(address, value)
    blocks = ENGINE.blocks(X86_64, 16)
    blocks.append(list(image.stack_of), [BLOCK] * 48, [State.IN_USE] * 48)
    blocks.seal()
    memory = Memory(target)
    profile = heap_profile.find(memory, ENGINE, image.image(target))
    if profile is None:
        return {}, None
    found = of_profile(memory, ENGINE, profile, blocks, "")
    stacks = [STACKS.index(site.frames) if site.frames in STACKS else -1 for site in found.sites]
    return {address: stacks[site] for address, site in zip(found.addresses, found.site_of)}, found


@pytest.mark.parametrize("layout", LAYOUTS, ids=["2.17", "2.15", "2.7"])
def test_intact_records(layout: Layout) -> None:
    image = Profile(layout)
    known, found = read_stacks(image, {})
    assert found is not None and not found.warnings
    assert known == image.stack_of
    assert {(site.live, site.allocated) for site in found.sites} == {((12, 1200), (20, 2000))}


def entries(*numbers: int) -> set[int]:
    return {HEAP + BLOCK * number for number in numbers}


AT, BUCKET, LAST = SOUND.at, SOUND.at["bucket 0"], HEADS + 8 * 90000
TO_BUCKETS, TO_MAP = TABLE + SOUND.layout.table, TABLE + SOUND.layout.map
DAMAGE = {
    "a cluster to nowhere": (AT["hash"], WILD, f"leads to {WILD:#x}, which cannot be read", entries(*range(32))),
    "a cluster that follows itself": (AT["link of a cluster"], SOUND.words[AT["hash"]], "is in another list too", entries(*range(16, 32))),
    "clusters without an end": (AT["link of a cluster"], HEAP, f"leads to {HEAP:#x}, which is outside its memory", entries(*range(16, 32))),
    "a list to nowhere": (AT["list of 3"], WILD, f"from {WILD:#x} on, ends early", entries(3, 7, 11, 15)),
    "an entry to nowhere": (AT["entry 7"], WILD, f"ends early: node {WILD:#x}", entries(3)),
    "an entry that leads to itself": (AT["entry 7"], AT["entry 7"], "ends early: ", entries(3)),
    "an entry that ends a list": (AT["entry 7"], 0, "1 block in use more than its map", entries(3)),
    "an entry of no bucket": (AT["entry 20"] + 24, WILD, f"at {AT['entry 20']:#x} has no bucket", entries(20)),
    "an entry of no block": (AT["entry 20"] + 8, WILD, f"at {AT['entry 20']:#x} is about {WILD:#x}, where no block", entries(20)),
    "a bucket to nowhere": (
        HEADS + 8 * 90000,
        WILD,
        f"bucket at {WILD:#x}, in the list from {LAST:#x}, is damaged",
        entries(*range(2, 48, 4)),
    ),
    "buckets in a circle": (
        AT["bucket's link"],
        BUCKET,
        f"bucket at {BUCKET:#x}, in the list from {HEADS + 8 * 17:#x}",
        entries(*range(1, 48, 4)),
    ),
    "a bucket of a million frames": (BUCKET + 40, 1000000, f"at {BUCKET:#x}", entries(*range(0, 48, 4), *range(1, 48, 4))),
    "a bucket whose stack is nowhere": (BUCKET + 48, WILD, f"at {BUCKET:#x}", entries(*range(0, 48, 4), *range(1, 48, 4))),
    "memory whose mark is wrong": (AT["magic of entries 16"], 0, f"memory is damaged at {AT['link of entries 16']:#x}", set()),
    "memory that leads to nowhere": (AT["link of entries 40"], WILD, f"memory is damaged at {WILD:#x}", set()),
    "memory to nowhere": (AT["memory"], WILD, f"memory is damaged at {WILD:#x}", set()),
    "a map to nowhere": (
        TABLE + SOUND.layout.map,
        WILD,
        f"map, to which {TO_MAP:#x} points, is damaged",
        entries(*range(48)),
    ),
    "clusters nowhere": (TABLE + 0x1000, WILD, f"map at {WILD:#x} cannot be read", entries(*range(48))),
    "buckets nowhere": (TO_BUCKETS, WILD, f"{TO_BUCKETS:#x} points, is damaged", entries(*range(48))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported(name: str) -> None:
    address, value, said, lost = DAMAGE[name]
    known, found = read_stacks(SOUND, {address: value})
    assert found is not None and any(said in warning for warning in found.warnings), found and found.warnings
    assert known == {block: stack for block, stack in SOUND.stack_of.items() if block not in lost}


def test_keys_are_no_references_despite_damage() -> None:
    """Blocks to which the lists of the map lead belong to the map, even if a damaged link hides a part of the map."""
    target = SOUND.target()
    target.write_word(AT["link of entries 40"], WILD)
    found = heap_profile.find(Memory(target), ENGINE, SOUND.image(target))
    assert found is not None and found.damaged
    outside = [number for number in range(48) if not any(start <= AT[f"entry {number}"] < end for start, end in found.memory)]
    assert outside == []


values = st.one_of(st.sampled_from([0, 1, WILD, HEAP, HEAP + BLOCK, (1 << 64) - 1, 1 << 47, *WORDS]), st.integers(0, (1 << 64) - 1))


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(LINKS)), value=values)
def test_unreadable_links_are_reported(name: str, value: int) -> None:
    known, found = read_stacks(SOUND, {LINKS[name]: value})
    assert found is not None
    assert found.warnings or known == SOUND.stack_of, name
    assert known.items() <= SOUND.stack_of.items()


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), values, min_size=1, max_size=12))
def test_any_words(damage: dict[int, int]) -> None:
    known, _ = read_stacks(SOUND, damage)
    assert known.keys() <= SOUND.stack_of.keys()


@pytest.mark.parametrize(("offset", "value"), [(0, 1 << 40), (8, 0), (8, 1 << 40), (-1, WILD)])
def test_a_sampled_span(offset: int, value: int) -> None:
    """A span has no stack if its record is damaged, or unreadable (-1). The other span has its stack."""
    target = FakeTarget({HEAP: bytes(0x4000), TABLE: bytes(0x1000)})
    for at, first in ((TABLE, 0x1000), (TABLE + 0x400, 0x2000)):
        for place, word in enumerate((100, 3, first, first + 1, first + 2)):
            target.write_word(at + 8 * place, word)
    if offset >= 0:
        target.write_word(TABLE + offset, value)
    records = [value if offset < 0 else TABLE, TABLE + 0x400]
    spans = [Span(0, HEAP + 0x2000 * i, HEAP + 0x2000 * (i + 1), 0, IN_USE, 1, at, True) for i, at in enumerate(records)]
    blocks = ENGINE.blocks(X86_64, 16)
    blocks.append([span.start for span in spans], [128] * 2, [State.IN_USE] * 2)
    blocks.seal()
    (found,) = of_samples(Memory(target), ENGINE, spans, blocks, "")
    assert list(found.addresses) == [HEAP + 0x2000] and found.sites[0].frames == (0x2000, 0x2001, 0x2002)
    (warning,) = found.warnings
    assert hex(HEAP) in warning and hex(records[0]) in warning
