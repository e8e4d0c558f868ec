"""Data of jemalloc that are in ordinary blocks, or that no list contains if jemalloc was built without statistics."""

from __future__ import annotations

import pytest
from image_jemalloc import ARENA, SIZES, SMALL, TID, TLS, Image, profiler, read, states

from findleaks.allocators import directory
from findleaks.allocators.jemalloc import layout


@pytest.fixture(autouse=True)
def jemalloc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the finders of other allocators."""
    monkeypatch.setattr(directory, "FINDERS", ("findleaks.allocators.jemalloc",))


@pytest.mark.parametrize("row", layout.PROFILES)
def test_profiler(row: layout.ProfileLayout) -> None:
    image = Image()
    own = profiler(image, row)
    directory, jemalloc = read(image.build())
    assert states(directory, list(own.values())) == {"METADATA"}
    others = [block for block in image.blocks["used"] if block not in own.values()]
    assert states(directory, others) == {"IN_USE"}
    (cache,) = [cache for cache in jemalloc.caches(directory.blocks) if cache.size == 64]
    assert (cache.in_use, cache.own["internal"]) == (64 - len(own), len(own))
    assert directory.problems == []


@pytest.mark.parametrize(
    ("name", "offset", "value", "stay"),
    [
        ("all", 40, 8, ["context", "count", "thread"]),
        ("all", 32, 8, ["context", "count", "thread"]),
        ("context", 16, 0x4141414141414141, ["count", "thread"]),
        ("count", 96, 8, ["count", "thread"]),
        ("count", 0, 0x4141414141414141, ["count", "thread"]),
    ],
)
def test_profiler_written_over(name: str, offset: int, value: int, stay: list[str]) -> None:
    """If the fields contradict each other, the blocks stay in use, so that no block of the program is mistaken for one of jemalloc."""
    image = Image()
    own = profiler(image, layout.PROFILES[0])
    image.put(own[name] + offset, value)
    directory, _ = read(image.build())
    assert states(directory, [own[name] for name in stay]) == {"IN_USE"}


def test_cyclic_profiler() -> None:
    image = Image()
    own = profiler(image, layout.PROFILES[0])
    image.put(own["count"] + 112, own["count"], own["count"] | 1)
    directory, _ = read(image.build())
    assert states(directory, list(own.values())) == {"METADATA"}


@pytest.mark.parametrize("kind", [layout.EDATA, layout.EXTENT])
def test_built_without_statistics(kind: layout.ExtentLayout) -> None:
    """Without statistics, counters are missing, arenas do not list thread caches, and thread caches do not refer to
    their bins. The thread caches are found in thread-local storage."""
    image = Image(kind)
    row = next(row for row in layout.BINS if row.extent is kind)
    for szind in range(len(SMALL)):
        image.put(image.bins + szind * row.size + row.stats, *[0] * len(layout.BIN_STATS))
    image.put(ARENA + 976, *[0] * 6 * (len(SIZES) - len(SMALL)))
    image.put(image.heads, 0, 0)
    image.put(TLS + 0x1000 if kind is layout.EDATA else TLS + 0x2000 + 920, *[0] * (5 if kind is layout.EDATA else 4))
    directory, jemalloc = read(image.build())
    assert directory.problems == []
    assert states(directory, image.cached) == {"CACHED"} and states(directory, image.blocks["used"]) == {"IN_USE"}
    assert [(cache.thread, cache.size, cache.blocks) for cache in jemalloc.thread_caches(directory.blocks)] == [(TID, 32, 2)]
    assert {cache.allocs for cache in jemalloc.caches(directory.blocks)} == {None}
    assert jemalloc.read_counters() == {} and list(jemalloc.verify(directory.blocks)) == []
