"""Rows of `diff` for handmade snapshots: which part is named, what is not counted twice, and the text about its trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

import pytest

from findleaks.commands import Invocation
from findleaks.commands.diff_text import headline, label, suggestion, text
from findleaks.history import growth as growth_rows
from findleaks.history.figure_series import REST, all_series
from findleaks.history.figures import Figure, figures
from findleaks.history.growth import Grown, Growth
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.history.trend import Trend
from findleaks.runtimes.jvm import named_roots

MIB = 1 << 20


def snapshot(at: int, *given: Figure, resident: int = 0) -> Snapshot:
    """Return the snapshot that was taken `at` hours after the first one."""
    total = Figure("total", "resident", None, resident or sum(one.bytes or 0 for one in given if one.section in ("root", "share")))
    return Snapshot(f"{at}.snapshot", Clock(3600.0 * at, 3600.0 * at, "boot"), Identity("shop", "0123456789ab"), [total, *given])


def root(name: str, size: float, count: int = 0) -> Figure:
    return Figure("root", name, count or int(size), int(size * MIB))


def field(within: str, name: str, size: float, count: int = 0) -> Figure:
    return Figure("field", name, count or int(size), int(size * MIB), within)


def container(within: str, name: str, size: float, count: int, what: str = "std::map, nodes") -> Figure:
    return Figure("container", name, count, int(size * MIB), within, what)


def growth(*samples: Sequence[Figure]) -> Growth:
    return Growth([snapshot(at, *given) for at, given in enumerate(samples)])


def labels(found: Growth) -> list[str]:
    return [label(row) for row in found.rows if row.trend is not Trend.FLAT]


def lines(found: Growth) -> list[str]:
    return list(text(found, found.rows, 10, 200, Invocation("findleaks", "core")))


def test_innermost_part_that_explains_the_growth_is_named() -> None:
    def sample(size: float, nodes: int) -> list[Figure]:
        parts = [field("g_shop", "Shop.cart", size), field("g_shop", "Shop.cart → Cart.items", size), field("g_shop", "Shop.names", 1)]
        return [root("g_shop", size + 2), *parts, container("g_shop", "Shop.cart → Cart.items", size, nodes), root("g_other", 7)]

    found = growth(sample(3, 1000), sample(9, 3000))
    assert labels(found) == ["retained by g_shop → Shop.cart → Cart.items: std::map, 1,000 → 3,000 nodes"]
    assert (found.rows[0].series.delta, found.rows[0].per_hour and found.rows[0].per_hour.slope) == (6 * MIB, 6 * MIB)
    assert headline(found) == (
        "shop (build-id 01234567…): + 6.0 MiB resident in 60 min; what grew most: + 6.0 MiB, + 6.0 MiB an hour, "
        "retained by g_shop → Shop.cart → Cart.items: std::map, 1,000 → 3,000 nodes"
    )


def test_a_root_of_which_two_fields_grow_is_divided() -> None:
    def sample(one: float, other: float, rest: float) -> list[Figure]:
        return [
            root("g_shop", one + other + rest),
            field("g_shop", "Shop.carts", one),
            container("g_shop", "Shop.carts", one, int(one * 100)),
            field("g_shop", "Shop.names", other),
            field("g_shop", "Shop.names → +0x8", other - 0.5),
        ]

    found = growth(sample(1, 1, 2), sample(5, 3, 2.25))
    assert labels(found) == [
        "retained by g_shop → Shop.carts: std::map, 100 → 500 nodes",
        "retained by g_shop → Shop.names → +0x8, 0 → 2 blocks",
        "retained by g_shop, the rest, 2 blocks",
    ]
    assert [row.series.delta for row in found.rows] == [4 * MIB, 2 * MIB, MIB // 4]
    assert sum(row.series.delta for row in found.rows) == found.total.series.delta
    assert found.rows[2].series.note == REST


def test_an_unlisted_field_is_unknown_and_not_0() -> None:
    """`roots` lists the fields of the largest roots only."""
    small = [root("g_shop", 3)]
    found = growth(small, [root("g_shop", 4), field("g_shop", "Shop.carts", 3.5)])
    assert labels(found) == ["retained by g_shop, 3 → 4 blocks"]  # the field may have had 3 MiB in the first snapshot
    (series,) = [one for key, one in found.series.items() if key[0] == "field"]
    assert (series.bytes, series.delta) == ([None, int(3.5 * MIB)], 0)
    found = growth(small, [root("g_shop", 40), field("g_shop", "Shop.carts", 39), container("g_shop", "Shop.carts", 39, 500)])
    assert labels(found) == ["retained by g_shop → Shop.carts: std::map, 500 nodes"]  # the field had 3 MiB at most


def test_a_field_of_a_new_root_was_0() -> None:
    found = growth([root("g_other", 1)], [root("g_other", 1), root("g_shop", 4), field("g_shop", "Shop.carts", 4, 9)])
    assert labels(found) == ["retained by g_shop → Shop.carts, 0 → 9 blocks"]


def test_a_root_of_a_heap_that_is_too_small_to_be_listed_is_no_shrinkage() -> None:
    """The JVM's roots without a variable are listed only if they retain a fiftieth of the live objects. One is missing in a larger heap."""

    def sample(size: float, handle: float, variable: float) -> Sequence[Figure]:
        sizes = {"handle of the JVM: VM Global": handle, "static variable App.CACHE": variable}
        heap = Figure("share", "JVM Java heap: runtime", None, int(size * MIB))
        return [heap, *(Figure("heap root", name, 100, int(one * MIB), "JVM") for name, one in sizes.items() if one)]

    assert growth_rows._LISTED_SHARE == named_roots._LEAST_SHARE
    found = {row.series.key[2]: row.series.delta / MIB for row in growth(sample(10, 0.4, 0), sample(30, 0, 19)).rows}
    assert found == {"static variable App.CACHE": 19, "JVM Java heap: runtime": 1}
    # A root that was large enough to be listed is gone.
    found = {row.series.key[2]: row.series.delta / MIB for row in growth(sample(30, 5, 1), sample(24, 0, 1)).rows}
    assert found["handle of the JVM: VM Global"] == -5 and found["JVM Java heap: runtime"] == -1


def make_handles(count: int, size: float) -> Figure:
    return Figure("handles", "isolate 1", count, int(size * MIB))


def test_handles_are_named_before_retainers_of_their_blocks() -> None:
    def sample(size: float, more: float) -> list[Figure]:
        parts = [field("several roots", "environ, node, data", size), make_handles(int(size * 1000), size)]
        return [root("several roots", size + more), root("node, data", 1), *parts]

    found = growth(sample(1, 1), sample(9, 1.5))
    assert labels(found) == ["V8's handle-scope blocks (isolate 1), 1,000 → 9,000 handles"]
    found = growth(sample(1, 1), sample(9, 7))
    assert labels(found) == ["V8's handle-scope blocks (isolate 1), 1,000 → 9,000 handles", "retained by several roots, the rest"]
    assert [row.series.delta for row in found.rows if row.trend is not Trend.FLAT] == [8 * MIB, 6 * MIB]


def test_native_memory_of_a_runtimes_types() -> None:
    def sample(strings: int) -> list[Figure]:
        size = strings * 1000
        return [
            Figure("root", "Ruby's heap pages", strings, size + MIB),
            Figure("native", "String", strings, size, "Ruby"),
            Figure("runtime type", "String", 2 * strings, strings * 40, "Ruby"),
            Figure("runtime type", "Symbol", 500, 20_000, "Ruby"),
            Figure("share", "Ruby heap pages: runtime", None, strings * 50),
        ]

    found = growth(sample(2000), sample(12_000))
    assert labels(found) == [
        "native memory of Ruby's String, 4,000 → 24,000 objects, 2,000 → 12,000 blocks",
        "Ruby heap pages: String 4,000 → 24,000",
    ]
    assert "  Objects of Ruby that grew most: String 4,000 → 24,000" in lines(found)


def test_leaks_that_were_0() -> None:
    found = growth([root("g", 5)], [root("g", 5), Figure("lost", "64 B", 40_000, 40_000 * 64, "definite", '"GET /"')])
    assert labels(found) == ['leaked: 64 B, e.g. "GET /", 0 → 40,000 blocks']
    assert "  1. Leaked, and growing: nothing refers to it, + 2.4 MiB an hour: leaked" in "\n".join(lines(found))


def make_growth(values: Sequence[float], growing: Optional[Sequence[float]] = None) -> Growth:
    other = growing or [5.0] * len(values)
    return growth(
        *([Figure("share", "glibc 2.36: kept", 3, int(value * MIB), note="arenas"), root("g", size)] for value, size in zip(values, other))
    )


def test_free_memory_not_returned_is_no_leak() -> None:
    found = make_growth([2, 12, 22])
    assert labels(found) == ["glibc 2.36: free and not returned, 3 arenas"]
    assert headline(found).endswith("an hour, glibc 2.36: free and not returned, 3 arenas; still growing at the end")
    said = "\n".join(lines(found))
    assert "  1. Not a leak: the allocator keeps free memory, + 10 MiB an hour (Theil–Sen; + 10 MiB to + 10 MiB)" in said


def test_nothing_grows() -> None:
    assert headline(make_growth([5.0] * 10)).endswith("+ 0 B resident in 9 h; nothing grows")
    assert headline(make_growth([5.0] * 9 + [5.01])).endswith("; nothing grows by more than 64 KiB and 1 %")
    leaks = [[Figure("lost", "24 B", 1, 4000 * at, "definite"), Figure("share", "glibc 2.36: in use", 1, 4000 * at)] for at in (1, 2)]
    assert headline(growth(*leaks)).endswith("; nothing grows by more than 64 KiB and 1 %; leaked blocks: + 3.9 KiB")


def test_a_warm_up() -> None:
    found = make_growth([1, 4, 6, 7, 7, 7, 7, 7, 7, 7])
    assert headline(found).endswith("; nothing grows any more; grew at first: + 6.0 MiB, glibc 2.36: free and not returned, 3 arenas")
    assert lines(found)[3].endswith("glibc 2.36: free and not returned, 3 arenas (has ended)")
    assert not any(line.startswith("  1. ") for line in lines(found))


def test_a_saw_tooth() -> None:
    found = make_growth([1, 4, 7, 1, 4, 7, 1, 4, 7, 1])
    assert headline(found).endswith(
        "nothing grows; largest saw-tooth: between 1.0 MiB and 7.0 MiB, glibc 2.36: free and not returned, 3 arenas"
    )


def test_growth_is_named_before_a_larger_saw_tooth() -> None:
    found = make_growth([1, 40, 70, 1, 40, 70, 1, 40, 70], growing=[1 + at for at in range(9)])
    assert "what grew most: + 8.0 MiB, + 1.0 MiB an hour, retained by g, 1 → 9 blocks; still growing at the end" in headline(found)
    trends = {label(row): row.trend for row in found.rows}
    assert trends == {"retained by g, 1 → 9 blocks": Trend.GROWING, "glibc 2.36: free and not returned, 3 arenas": Trend.SAWTOOTH}


def test_pages_of_files_are_named_after_retained_memory() -> None:
    """A debugger that reads a process makes more pages of files resident. Therefore they are named last, unless they
    are nearly all of the growth."""

    def sample(held: float, files: float) -> list[Figure]:
        return [root("g_shop", held), Figure("share", "files", 3, int(files * MIB), "", "files")]

    found = growth(sample(1, 2), sample(3, 5))
    assert "; what grew most: + 2.0 MiB, + 2.0 MiB an hour, retained by g_shop" in headline(found)
    first, second = (line for line in lines(found) if line.startswith(("  1. ", "  2. ")))
    assert first.startswith("  1. In use, and growing, ")
    assert second.startswith(
        "  2. More pages of files are in memory (the kernel drops those that were not written to when memory is short), "
    )
    assert "; what grew most: + 30 MiB, + 30 MiB an hour, files mapped, 3 files" in headline(growth(sample(1, 2), sample(3, 32)))


@pytest.mark.parametrize(
    ("share", "before", "after", "text"),
    [
        ("stacks", (10, 1), (110, 2), "More stacks: threads are started and do not end, "),
        ("stacks", (1, 1), (2, 21), "Deeper stacks: calls are nested deeper, or functions have large local variables, "),
        ("stacks", (2, 1), (2, 21), "Deeper stacks: calls are nested deeper, or functions have large local variables, "),
        ("unjoined", (10, 1), (110, 2), "More stacks: threads end and are never joined, "),
    ],
)
def test_stacks_that_grow(share: str, before: tuple[int, int], after: tuple[int, int], text: str) -> None:
    samples = [[Figure("share", share, count, size * MIB, "", "threads")] for count, size in (before, after)]
    assert [line for line in lines(growth(*samples)) if line.startswith(f"  1. {text}")]


def test_leaked_mappings_are_one_row() -> None:
    """The kernel merges mappings, so that their sizes change."""

    def sample(*sizes: int) -> list[Figure]:
        group = {"kind": "definite", "type": "anonymous mapping", "cycle": 0, "blocks": 1, "indirect_blocks": 0, "indirect_bytes": 0}
        groups = [{**group, "bytes": size * MIB, "size": size * MIB, "hint": None} for size in sizes]
        return figures({"find": {"totals": {}, "groups": groups}})

    found = growth(sample(4), sample(4, 12))
    assert labels(found) == ["leaked: anonymous mapping, 1 → 2 mappings"]
    assert found.rows[0].series.delta == 12 * MIB
    assert suggestion(found.rows[0]) == "find --kind definite"


@pytest.mark.parametrize("merged_first", [True, False])
def test_files_that_only_one_sample_merges(merged_first: bool) -> None:
    """A sample with at least 10 files whose names differ in numbers contains one kind for them, and a sample with 9 files contains 9."""
    apart = [Figure("kind of mapping", f"/cache-{number}.bin", 1, MIB, "files") for number in range(9)]
    other = Figure("kind of mapping", "/usr/lib/libc.so.6", 5, 2 * MIB, "files")
    merged = Figure("kind of mapping", "/cache-#.bin", 12, 12 * MIB, "files")
    samples = [
        [Figure("share", "files", 10, 11 * MIB, "", "files"), *apart, other],
        [Figure("share", "files", 13, 14 * MIB, "", "files"), merged, other],
    ]
    found = growth(*(reversed(samples) if merged_first else samples))
    kinds = {key[2]: (one.counts, one.bytes) for key, one in found.series.items() if key[0] == "kind of mapping"}
    counts, sizes = [9, 12], [9 * MIB, 12 * MIB]
    assert {name: tuple(map(list, rows)) for name, rows in kinds.items()} == {
        "/cache-#.bin": (counts[::-1], sizes[::-1]) if merged_first else (counts, sizes),
        "/usr/lib/libc.so.6": ([5, 5], [2 * MIB, 2 * MIB]),
    }


def test_lines_of_a_finding_have_one_margin() -> None:
    found = growth([root("a_variable_with_a_long_name", 1)], [root("a_variable_with_a_long_name", 9)])
    printed = list(text(found, found.rows, 10, 60, Invocation("findleaks", "core")))
    first = next(at for at, line in enumerate(printed) if line.startswith("  1. "))
    assert printed[first + 1].startswith("     ") and printed[first + 1][5] != " "


def test_by_lists_small_changes() -> None:
    """With `diff --by KIND`, all changes of this kind are listed, even one more thread. Changes of other kinds are
    counted, and findings are about all kinds."""
    first = [root("g_shop", 1), Figure("threads", "worker ← start_thread", 1, None), Figure("threads", "main", 1, None)]
    last = [root("g_shop", 9), Figure("threads", "worker ← start_thread", 2, None), Figure("threads", "main", 1, None)]
    found = growth(first, last)
    rows = [found.judge(one) for one in all_series(found.snapshots, frozenset({"threads"})).values()]
    said = list(text(found, rows, 10, 200, Invocation("findleaks", "core")))
    assert [line.split()[:4] for line in said[3:]] == [["1", "2", "+", "1"]]
    unchanged = [found.judge(one) for one in all_series(growth(first, first).snapshots, frozenset({"threads"})).values()]
    assert list(text(found, unchanged, 10, 200, Invocation("findleaks", "core")))[1:] == ["", "  2 rows, none of which changed"]
    assert list(text(found, [], 10, 200, Invocation("findleaks", "core")))[1:] == ["", "  there are no figures of this kind"]


def test_rows_that_shrink_come_last() -> None:
    found = growth([root("one", 9), root("two", 1)], [root("one", 1), root("two", 3)])
    assert [(row.series.key[2], row.series.delta) for row in found.rows] == [("two", 2 * MIB), ("one", -8 * MIB)]
    assert [row.trend for row in found.rows] == [Trend.TWO_POINTS] * 2
    assert isinstance(found.rows[0], Grown)


def make_field(name: str, size: int, **more: object) -> dict[str, object]:
    return {"name": name, "retained_blocks": 1, "retained_bytes": size, "container": None, "children": [], **more}


def test_names_of_fields_have_no_addresses_and_no_counts() -> None:
    """A part without a name is left out, because it cannot be found in the next snapshot."""
    below = make_field(
        "block of 64 B, offset 0x8", 70, container={"what": "hash table", "length": 9, "unit": "nodes", "node_sizes": [32, 32]}
    )
    children = [
        make_field("Shop.carts", 60, children=[make_field("block of 1.3 MiB+0x40", 50)]),
        make_field("1,200 fields like g_shop+0x40", 40, alike={"fields": 1200}),
        make_field("Ruby's heap pages, 0x7f2105e91d98", 30),
    ]
    shared = make_field(
        "block of 1.2 KiB at 0x7fa676790000", 80, holders=["main thread's stack (poll)", "server (data)", "lctx"], children=[below]
    )
    found = figures(
        {
            "roots": {
                "roots": [make_field("g_shop (227 pages: 9 live)", 200, children=children), make_field("table (7-zip, data)", 20)],
                "shared": {"retained_blocks": 2, "retained_bytes": 90, "children": [shared, make_field("block of 8 B at 0x7fa676", 8)]},
            }
        }
    )
    assert [(one.section, one.within, one.name, one.bytes) for one in found] == [
        ("root", "", "g_shop", 200),
        ("field", "g_shop", "Shop.carts", 60),
        ("field", "g_shop", "Shop.carts → +0x40", 50),
        ("root", "", "table (7-zip, data)", 20),
        ("root", "", "several roots", 90),
        ("field", "several roots", "server (data), lctx", 80),
        ("field", "several roots", "server (data), lctx → +0x8", 70),
        ("container", "several roots", "server (data), lctx → +0x8", 70),
    ]


def test_series_of_parts_that_appear_and_disappear() -> None:
    one, two = snapshot(0, root("a", 1)), snapshot(1, root("b", 2, 5))
    series = all_series([one, two], frozenset({"root"}))
    assert (series["root", "", "a"].bytes, series["root", "", "b"].bytes) == ([MIB, 0], [0, 2 * MIB])
    assert series["root", "", "b"].counts == [0, 5]


def test_several_processes_have_no_rates() -> None:
    """Snapshots with different pids, with one pid and two start times (the pid was reused), or with two programs (as in cores)."""
    for first, last, why in (
        ({"pid": 7}, {"pid": 8}, "pid 7, pid 8"),
        ({"pid": 7, "started": 100}, {"pid": 7, "started": 900}, "pid 7 was reused between the samples"),
        ({"pid": 7, "image": "aa"}, {"pid": 7, "image": "bb"}, "pid 7 was reused, or has run another program since"),
    ):
        samples = [snapshot(at, root("cache", 10 * (at + 1))) for at in range(2)]
        found = Growth([replace(one, identity=replace(one.identity, **which)) for one, which in zip(samples, (first, last))])
        assert (found.several, found.times) == (why, None)
        assert all(row.per_hour is None and row.trend in (Trend.TWO_POINTS, Trend.FLAT) for row in found.rows)
        said = " ".join("\n".join(text(found, found.rows, 10, 200, Invocation(), False)).split())
        assert said.startswith(
            f"several processes of shop (build-id 01234567…), not one ({why}): + 10 MiB resident from the first to the last; "
            "what differs most: + 10 MiB, retained by cache, 10 → 20 blocks "
        )
        assert " an hour" not in said and "AN HOUR" not in said and "grow" not in said.lower()
    one = {"pid": 7, "started": 100, "image": "aa"}
    same = Growth(
        [replace(each, identity=replace(each.identity, **one)) for each in (snapshot(at, root("cache", 10 * (at + 1))) for at in range(2))]
    )
    assert same.several == "" and same.rows[0].per_hour is not None


def test_descriptors_that_a_sample_does_not_count_by_name() -> None:
    """The names with the lowest counts are counted together. Their numbers are unknown, not 0."""

    def opened(**counts: int) -> list[Figure]:
        return [Figure("descriptor", name.replace("_", " "), count, None) for name, count in counts.items()]

    few, many = opened(pipe=30, queue=18), opened(pipe=60, other_files_and_kinds=90)
    assert labels(growth(few, many)) == ["open pipe ends"]
    assert labels(growth(few, opened(pipe=60))) == ["open pipe ends", "open descriptors of queue"]
    assert not labels(growth(few, []))


def test_sockets_whose_protocols_were_not_read() -> None:
    """If one sample has too many sockets to read their protocols, the sockets of all samples are counted together."""
    names = ("TCP socket", "UNIX-STREAM socket", "/etc/cups.socket")
    known = [Figure("descriptor", name, count, None) for name, count in zip(names, (1000, 900, 10))]
    more = [Figure("descriptor", name, count, None) for name, count in zip(names, (1900, 900, 90))]
    unknown = [Figure("descriptor", "socket", 2800, None), Figure("descriptor", names[2], 10, None)]
    assert labels(growth(known, more)) == ["open TCP sockets", "open descriptors of /etc/cups.socket"]
    found = growth(known, unknown)
    assert (labels(found), found.rows[0].series.delta) == (["open sockets"], 900)
