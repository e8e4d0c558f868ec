"""glibc's size classes and counters in synthetic images, intact and damaged."""

from __future__ import annotations

import dataclasses

import fake
import pytest
from ptmalloc import BITS_32, SIZE, of_release

from findleaks.allocators.base import Cache
from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.glibc import caches, layout, tcache
from findleaks.allocators.glibc.caches import Classes
from findleaks.allocators.glibc.instance import Glibc
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64


def read(target: fake.FakeTarget) -> tuple[Directory, Glibc]:
    directory = build_directory(target, PureEngine(target.arch))
    (glibc,) = directory.allocators
    assert isinstance(glibc, Glibc)
    return directory, glibc


def add_up(directory: Directory, glibc: Glibc) -> list[Cache]:
    """Return the classes. Check that their sums are those of the blocks and of the arenas."""
    blocks = directory.blocks
    found, arenas = glibc.caches(blocks), glibc.arenas(blocks)
    for at, state in enumerate((State.IN_USE, State.CACHED, State.FREE)):
        assert sum(cache[3 + at] for cache in found) == blocks.totals(state).blocks
        assert sum(cache[6 + at] for cache in found) == sum(arena[1 + at] for arena in arenas) == blocks.totals(state).bytes
    assert sum(kept.blocks for kept in glibc.thread_caches(blocks)) == blocks.totals(State.CACHED).blocks
    return found


@pytest.mark.parametrize("word", [8, 4])
@pytest.mark.parametrize("minor", [15, 23, 26, 31, 36, 41, 43])
def test_every_layout(minor: int, word: int) -> None:
    made = of_release((2, minor), 16 if word == 8 or minor > 26 else 8, X86_64 if word == 8 else BITS_32)
    directory, glibc = read(made.build())
    assert directory.problems == []
    found = add_up(directory, glibc)
    assert {cache.size + word for cache in found if cache.size} == {0x30, 0x40, 0x50, 0x60}
    by_size = {cache.size + word: cache for cache in found if cache.arena == "main"}
    assert (by_size[0x40].in_use, by_size[0x60].free, by_size[0x40].memory) == (1, 1, 0x40)
    assert by_size[0x30].cached == (2 if made.tcache else 0)
    assert by_size[0x50].free == (1 if made.state.fastbins else 0)
    assert [(cache.in_use, cache.memory) for cache in found if cache.arena == "mmapped"] == [(2, sum(made.mapped))]

    counted = glibc.read_counters()
    arenas = 2
    fast = 1 if made.state.fastbins else 0
    assert (counted["ordblks"], counted["smblks"], counted["fsmblks"]) == (arenas + arenas, arenas * fast, arenas * fast * 0x50)
    tops = sum(arena.spare for arena in glibc.arenas(directory.blocks))
    assert counted["fordblks"] == tops + arenas * (0x60 + fast * 0x50)
    assert counted["uordblks"] == counted["arena"] - counted["fordblks"] and counted["arena"] == 2 * SIZE
    assert (counted["hblks"], counted["hblkhd"]) == (2, sum(made.mapped))
    assert glibc.problems == []


def test_classes_are_those_of_the_thread_caches_then_bands() -> None:
    wide, narrow, i386 = Classes(8, 16), Classes(4, 8), Classes(4, 16)
    assert (wide.small, narrow.small, i386.small) == (1032, 516, 1020)
    assert [wide.name(usable) for usable in (24, 1032)] == [("24", 24), ("1032", 1032)]
    assert [wide.name(usable)[0] for usable in (1048, 2040, 2056, 131064)] == ["1033-2047", "1033-2047", "2048-4095", "65536-131071"]
    assert (narrow.name(524)[0], i386.name(1036)[0]) == ("517-1023", "1024-2047")
    assert (wide.chunk(24), wide.chunk(16), narrow.chunk(12), narrow.chunk(8)) == (32, 32, 16, 16)


def test_a_free_block_has_the_class_of_a_used_block() -> None:
    made = of_release((2, 36))
    made.chunks = ((0x40, "used"), (0x40, "free"), (0x40, "used"))
    directory, glibc = read(made.build())
    (cache,) = [cache for cache in add_up(directory, glibc) if cache.arena == "main"]
    assert (cache.size, cache.in_use, cache.free, cache.in_use_bytes, cache.free_bytes, cache.memory) == (0x38, 2, 1, 0x70, 0x30, 0xC0)


def test_a_thread_cache_in_a_chunk_that_is_too_long_by_the_smallest() -> None:
    """glibc 2.43 returned a block of 800 bytes for a request of 768."""
    made = of_release((2, 43))
    row = made.tcache
    assert row is not None

    class LongLayout(layout.TcacheLayout):
        def chunk_size(self, align: int) -> int:
            return super().chunk_size(align) + 32

    made.tcache = LongLayout(**dataclasses.asdict(row))
    directory, glibc = read(made.build())
    assert [cache.tid for cache in glibc.tcaches.caches] == [7] and isinstance(glibc.tcaches, tcache.Tcaches)
    assert directory.blocks.totals(State.CACHED).blocks == 2
    add_up(directory, glibc)


@pytest.mark.parametrize("short", [1024, 1])
@pytest.mark.parametrize("link", ["itself", "wild", "unmapped", "zero", "used"], ids=lambda link: f"to-{link}")
def test_a_damaged_bin(monkeypatch: pytest.MonkeyPatch, link: str, short: int) -> None:
    """The counts are too small, the damage is reported, and the command ends."""
    monkeypatch.setattr(caches, "SHORT", short)
    made = of_release((2, 36))
    made.chunks = ((0x40, "used"), (0x60, "free"), (0x40, "used"), (0x70, "free"), (0x40, "used"), (0x80, "free"), (0x40, "used"))
    target = made.build()
    main = [block for block in made.blocks["free"] if made.places.heap <= block < made.places.heap + SIZE]
    chunk = main[1] - 16
    values = {"itself": chunk, "wild": 0x4141414141414141, "unmapped": 0x1000, "zero": 0, "used": made.blocks["used"][0] - 16}
    target.write_word(chunk + 16, values[link])
    directory, glibc = read(target)
    add_up(directory, glibc)
    counted = glibc.read_counters()
    assert 4 <= counted["ordblks"] <= 9
    reported = [problem.what for problem in glibc.problems if "its lists hold" in problem.what]
    assert reported == ["main: its lists hold 2 free blocks, its heaps 3"] or (link in ("itself", "used") and len(reported) <= 1)


def test_long_bins_are_followed_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of_release((2, 36))
    made.chunks = tuple(piece for at in range(60) for piece in ((0x20 + 0x10 * (at % 8), "free"), (0x20, "used")))
    results = []
    for short in (1024, 7):
        monkeypatch.setattr(caches, "SHORT", short)
        directory, glibc = read(made.build())
        results.append((glibc.read_counters(), [arena.own for arena in glibc.arenas(directory.blocks)]))
        assert glibc.problems == []
        made.blocks.clear()
    assert results[0] == results[1] and results[0][0]["ordblks"] == 2 + 120
