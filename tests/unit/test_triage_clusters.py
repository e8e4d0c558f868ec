"""Leaked blocks grouped into leaks: blocks that differ in several words together are different leaks. Remains and null
pointers make no leaks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
from hostile import lines_run

from findleaks.triage.clusters import LeakHead, clusters
from findleaks.triage.identity import describe_signature
from findleaks.triage.shapes import DATA, HELD, LOST, UNCLEAR, ZERO, Shape, library_name, stable_name

REMAINS = (ZERO, DATA, HELD, f"{LOST}40 B", "libc data", f"{LOST}text")


def make_leak_heads(
    count: int, words: Sequence[Sequence[str]], size: int = 56, label: str = "", start: int = 0, seed: int = 1
) -> list[LeakHead]:
    """Return blocks. Each of their words is one of the values given for it."""
    draw = random.Random(seed)
    made = [Shape(label, False, False, tuple(draw.choice(list(several)) for several in words)) for _ in range(count)]
    return [LeakHead(shape, size, start + 64 * at, 1, 1, size) for at, shape in enumerate(made)]


def find_leaks(*several: list[LeakHead]) -> list[tuple[int, tuple[str, ...]]]:
    return sorted((round(cluster.weight), cluster.words) for cluster in clusters([one for part in several for one in part]))


@pytest.mark.parametrize("seed", range(20))
def test_remains_make_no_leaks(seed: int) -> None:
    some = make_leak_heads(150, [[DATA], [DATA, ZERO], REMAINS, REMAINS, REMAINS, REMAINS], seed=seed)
    ((weight, words),) = find_leaks(some)
    assert weight == 150 and words[:2] == (DATA, DATA) and set(words[2:]) <= {UNCLEAR, f"{LOST}blocks"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [10, 100])
def test_leaks_of_one_size_are_apart(seed: int, count: int) -> None:
    code, next_ = "shop code", f"{LOST}56 B"
    callbacks = make_leak_heads(count, [[HELD], [code], ["shop constants"], ["shop data"], [DATA], REMAINS], seed=seed)
    records = make_leak_heads(2 * count, [[next_], [f"{LOST}text"], [HELD], [ZERO, ZERO, f"{LOST}text"], [DATA], REMAINS], seed=seed + 100)
    samples = make_leak_heads(3 * count, [[DATA], [DATA], [DATA, ZERO], REMAINS, REMAINS, REMAINS], seed=seed + 200)
    assert [weight for weight, _ in find_leaks(callbacks, records, samples)] == [count, 2 * count, 3 * count]
    words = [one for _, one in find_leaks(callbacks, records, samples)]
    assert words[0][:4] == (HELD, code, "shop constants", "shop data")
    assert words[1][:4] == (next_, f"{LOST}text", HELD, f"{LOST}text")
    assert words[2][:3] in ((), (DATA, DATA, DATA))


def test_leaks_that_differ_in_one_word_only() -> None:
    """Leaks differ in the kind of memory that a word refers to, if both kinds have enough blocks."""
    named, plain = make_leak_heads(40, [[f"{LOST}text"], [DATA], [DATA]]), make_leak_heads(60, [[DATA], [DATA], [DATA]])
    assert find_leaks(named, plain) == [(40, (f"{LOST}text", DATA, DATA)), (60, (DATA, DATA, DATA))]


def test_null_pointers_make_no_leaks() -> None:
    trees = make_leak_heads(200, [[DATA], [ZERO, f"{LOST}56 B"], [ZERO, f"{LOST}56 B", f"{LOST}72 B"], [HELD]])
    assert find_leaks(trees) == [(200, (DATA, f"{LOST}56 B", f"{LOST}blocks", HELD))] or len(find_leaks(trees)) == 1


def test_few_blocks() -> None:
    one = make_leak_heads(1, [[HELD], ["shop code"], [DATA]])
    assert find_leaks(one) == [(1, (HELD, "shop code", DATA))]
    assert find_leaks(one, make_leak_heads(1, [[HELD], ["shop code"], [ZERO]])) == [(2, (HELD, "shop code", DATA))]
    assert len(find_leaks(one, make_leak_heads(1, [[DATA], [DATA], [f"{LOST}text"]]))) == 2


def test_blocks_a_little_larger_belong_to_those_of_their_size() -> None:
    usual = make_leak_heads(100, [[HELD], ["shop code"], [DATA]])
    larger = make_leak_heads(7, [[HELD], ["shop code"], [DATA]], size=72)
    many = make_leak_heads(60, [[HELD], ["shop code"], [DATA]], size=72)
    assert [weight for weight, _ in find_leaks(usual, larger)] == [107]
    assert [weight for weight, _ in find_leaks(usual, many)] == [60, 100]
    largest = make_leak_heads(2, [[HELD], ["shop code"], [DATA]], size=88)
    assert [weight for weight, _ in find_leaks(usual, larger, largest)] == [109]
    assert [weight for weight, _ in find_leaks(usual, make_leak_heads(7, [[DATA], [f"{LOST}text"], [DATA]], size=72))] == [7, 100]
    assert [weight for weight, _ in find_leaks(usual, make_leak_heads(7, [[HELD], ["shop code"], [DATA]], size=88))] == [7, 100]


def test_chains_of_similar_sizes_keep_all_blocks() -> None:
    sizes = [make_leak_heads(count, [[HELD], ["shop code"]], size) for count, size in ((100, 56), (30, 72), (8, 88))]
    assert find_leaks(*sizes) == [(138, (HELD, "shop code"))]


def test_work_grows_as_the_number_of_sizes() -> None:
    work = []
    for count in (500, 2000):
        some = [one for number in range(count) for one in make_leak_heads(1, [[HELD], ["shop code"]], 48 + 32 * number)]
        work.append(lines_run(partial(clusters, some)))
    assert work[1] < 6 * work[0]


def test_work_is_bounded_if_all_leaks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core may claim thousands of modules, and each word may point into a different module."""
    monkeypatch.setattr("findleaks.triage.clusters.MOST_WORK", 200_000)
    some = [one for number in range(500) for one in make_leak_heads(4, [[f"lib{number} data"]] * 8)]
    made: list[int] = []
    assert lines_run(lambda: made.append(sum(len(cluster.members) for cluster in clusters(some))), 20_000_000) > 0
    assert made == [2000]


def test_texts_by_the_word_they_begin_with() -> None:
    def texts(word: str, count: int) -> list[LeakHead]:
        return [LeakHead(Shape(f'text "{word}"' if word else "text", True, False, ()), 24 + at, at, 1, 1, 24) for at in range(count)]

    every = clusters([*texts("GET", 50), *texts("session", 40), *(one for at in range(12) for one in texts(f"name{at}", 1))])
    assert sorted((round(one.weight), one.label) for one in every) == [(12, "text"), (40, 'text "session"'), (50, 'text "GET"')]


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("osgeo::proj::Ellipsoid", "osgeo::proj::Ellipsoid"),
        ("Foo[17]", "Foo[]"),
        ("class libx.so.1+0x3d20", "class libx"),
        ("table libpj-2.5.so+0x10", "table libpj"),
        ("function handle.constprop.0", "function handle"),
        ("function handle(int) [clone .isra.0]", "function handle(int)"),
        ("code in shop", "code in shop"),
        ("", ""),
    ],
)
def test_names_are_the_same_in_all_builds(name: str, stable: str) -> None:
    assert stable_name(name) == stable


def test_names_of_files() -> None:
    names = ["/usr/lib/libc.so.6", "/x/libstdc++.so.6.0.30", "/x/shop (deleted)", "/x/libjemalloc.so", "/opt/libfoo-1.2.3.so", ""]
    assert [library_name(name) for name in names] == ["libc", "libstdc++", "shop", "libjemalloc", "libfoo", "module"]


def test_descriptions() -> None:
    assert (
        describe_signature("", 56, False, (f"{LOST}56 B", f"{LOST}text", HELD, DATA, f"{LOST}text"))
        == "56 B → 56 B, text; refers to live blocks"
    )
    assert describe_signature("Foo", 0, True, ()) == "cycle of Foo"
    assert describe_signature("zeros", 4096, False, ()) == "4,096 B of zeros"
    assert describe_signature("", 0, False, ()) == "blocks of varying size"
