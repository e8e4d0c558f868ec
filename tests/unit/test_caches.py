"""`caches` on synthetic allocators: rows, sums, orders, widths, the report of free memory that is not returned, and invalid arguments."""

from __future__ import annotations

import io
import json
import shlex
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks import commands
from findleaks.allocators.base import Arena, Cache, Heap, ThreadCache
from findleaks.audit.caches import CACHE_KEYS
from findleaks.commands.caches_text import percent, short
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import Interrupted, UsageError
from findleaks.formatting import number, size
from findleaks.session import Session

HEAP, OTHER, HUGE, STACK = 0x100000, 0x300000, 0x500000, 0x700000


class CountingAllocator(ListAllocator):
    """An allocator that has its own counters. The test sets them."""

    name, version, where = "counting", "3.1", "libcounting.so"

    def __init__(self, start: int, end: int, blocks: Sequence[Listed], caches: Sequence[Cache], arenas: Sequence[Arena] = ()) -> None:
        super().__init__(start, end, blocks)
        self.own_caches, self.own_arenas = list(caches), list(arenas)
        self.threads: list[ThreadCache] = []

    def caches(self, blocks: Blocks) -> list[Cache]:
        return self.own_caches

    def arenas(self, blocks: Blocks) -> list[Arena]:
        return self.own_arenas

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        return self.threads

    def read_counters(self) -> dict[str, int]:
        return {"nmalloc": 77}


def make_class(arena: str, bytes_: int, used: int, cached: int, free: int, name: str = "", **more: Any) -> Cache:
    """Return a size class. Each block has `bytes_` bytes, and 16 more for a header. If `name` is given, the class has
    blocks of many sizes."""
    counts = (used, cached, free)
    sums = tuple(count * bytes_ for count in counts)
    return Cache(arena, name or str(bytes_), 0 if name else bytes_, *counts, *sums, sum(counts) * (bytes_ + 16), **more)


def make_blocks(start: int, caches: Sequence[Cache]) -> list[Listed]:
    """Return blocks whose sums are those of these classes."""
    made, at = [], start
    for one in caches:
        states = zip(
            (State.IN_USE, State.CACHED, State.FREE),
            (one.in_use, one.cached, one.free),
            (one.in_use_bytes, one.cached_bytes, one.free_bytes),
        )
        for state, count, held in states:
            for _ in range(count):
                made.append(Listed(at, held // count, state))
                at += -(-held // count // 16) * 16 + 16
    return made


CACHES = [
    make_class("a", 32, 20, 3, 1, allocs=1000, fails=0),
    make_class("a", 48, 0, 0, 0, allocs=0, fails=0),
    make_class("a", 64, 2, 0, 30, allocs=50, fails=1),
    make_class("a", 3000, 4, 1, 0, "2048-4095"),
    make_class("b", 32, 5, 2, 0, allocs=9, fails=0),
    make_class("b", 0x8000, 1, 0, 2, "large"),
]
ARENAS = [Arena("a", 12768, 3096, 1952, 40000, {"pages": 10}, 8000), Arena("b", 32928, 64, 65536, 110000)]


def make_allocator(caches: Sequence[Cache] = CACHES, arenas: Sequence[Arena] = ARENAS) -> CountingAllocator:
    made = CountingAllocator(HEAP, HEAP + 0x100000, make_blocks(HEAP, caches), caches, arenas)
    made.threads = [
        ThreadCache(41, 0x7000, "32", 32, 3, 96),
        ThreadCache(41, 0x7000, "2048-4095", 0, 1, 3000),
        ThreadCache(42, 0x7100, "32", 32, 2, 64),
    ]
    return made


def open_session(*allocators: ListAllocator, stop_after: int | None = None) -> Session:
    memory = {allocator.range.start: bytes(allocator.range.end - allocator.range.start) for allocator in allocators} or {HEAP: bytes(64)}
    memory[STACK] = b"\x01" * 0x1000
    return session(FakeTarget(memory, threads=[thread(41, sp=STACK)], stop_after=stop_after), allocators)


def run(made: Session, *line: str, width: int = 100) -> tuple[int, str]:
    out = io.StringIO()
    status = commands.execute(lambda: made, ["caches", *line], out, width=width)
    return status, out.getvalue()


def run_json(made: Session, *line: str) -> Any:
    return json.loads(run(made, *line, "--json")[1])


def find_rows(text: str, head: str = "SIZE") -> list[str]:
    """Return the lines of the table that has this word in its header, up to the empty line."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if head in line.split() and "USED" in line.split())
    return lines[at + 1 : lines.index("", at)]


def test_rows_are_merged_over_arenas_and_add_up() -> None:
    found = run_json(open_session(make_allocator()))
    assert (found["schema"], found["command"], found["warnings"]) == ("findleaks/1", "caches", [])
    sizes = [("32", 32), ("48", 48), ("64", 64), ("2048-4095", 0), ("large", 0)]
    assert [(row["name"], row["size"]) for row in found["caches"]] == sizes
    first = found["caches"][0]
    assert (first["arena"], first["in_use"], first["cached"], first["free"], first["total"]) == (None, 25, 5, 1, 31)
    assert (first["in_use_bytes"], first["memory"], first["allocs"], first["fails"]) == (25 * 32, 31 * 48, 1009, 0)
    assert found["caches"][-1]["allocs"] is None
    for row in found["caches"]:
        assert row["in_use"] + row["cached"] + row["free"] == row["total"]
    (total,) = found["totals"]
    for state in ("in_use", "cached", "free"):
        assert total[state] == sum(row[f"{state}_bytes"] for row in found["caches"]) == sum(arena[state] for arena in found["arenas"])
        assert total["blocks"][state] == sum(row[state] for row in found["caches"])
    assert (total["mapped"], total["spare"], total["counted"]) == (150000, 8000, {"nmalloc": 77})
    assert (total["allocator"], total["version"], total["where"]) == ("counting", "3.1", "libcounting.so")


def test_rows_by_arena() -> None:
    found = run_json(open_session(make_allocator()), "--by-arena")
    assert [(row["arena"], row["name"], row["in_use"]) for row in found["caches"]] == [(c.arena, c.name, c.in_use) for c in CACHES]
    assert found["arenas"][0]["own"] == {"pages": 10}
    text = run(open_session(make_allocator()), "--by-arena")[1]
    assert [line.split()[0] for line in find_rows(text, "MAPPED")] == ["a", "b", "all"]
    assert find_rows(text, "MAPPED")[0].split() == ["a", "12", "KiB", "3.0", "KiB", "1.9", "KiB", "7.8", "KiB", "39", "KiB", "31", "%"]
    assert [line.split()[:2] for line in find_rows(text)][:2] == [["a", "32"], ["a", "64"]]


def test_text_and_json_agree() -> None:
    found, text = run_json(open_session(make_allocator())), run(open_session(make_allocator()), width=120)[1]
    assert " ".join(text.split()).startswith(
        "counting 3.1 in libcounting.so, 2 arenas: 45 KiB in use, 3.1 KiB in thread caches, 66 KiB free and not returned, 7.8 KiB spare"
    )
    shown = [row for row in found["caches"] if row["total"]]
    lines = find_rows(text)
    assert len(lines) == len(shown) + 2  # "all", and the row for the classes that were left out
    for line, row in zip(lines, shown):
        cells = [row["in_use"], row["cached"], row["free"], row["total"]]
        wanted = [number(cell) if cell or at == 3 else "–" for at, cell in enumerate(cells)]
        name = {"2048-4095": "2–4 KiB", "large": "large"}.get(row["name"], row["name"])
        used = row["in_use_bytes"] * 100 // (row["in_use_bytes"] + row["cached_bytes"] + row["free_bytes"])
        counts = ["–" if row[key] is None else number(row[key]) for key in ("allocs", "fails")]
        assert line.split("←")[0].split() == [*name.split(), *wanted, *size(row["memory"]).split(), f"{used}", "%", *counts]
    assert "33 %" in lines[3] and "← " in lines[3] and sum("←" in line for line in lines) == 1
    assert lines[-2].split()[:5] == ["all", "32", "6", "33", "71"]
    assert lines[-1] == "  1 size class without blocks not shown"


def test_column_of_allocations_needs_counts() -> None:
    plain = [one._replace(allocs=None, fails=None) for one in CACHES]
    assert "ALLOCS" in run(open_session(make_allocator()))[1]
    assert "ALLOCS" not in run(open_session(make_allocator(plain)))[1] and "FAILS" not in run(open_session(make_allocator(plain)))[1]


@pytest.mark.parametrize("sort", CACHE_KEYS)
def test_orders(sort: str) -> None:
    keys = {
        "memory": lambda row: row["memory"],
        "in-use": lambda row: row["in_use_bytes"],
        "free": lambda row: row["free_bytes"],
        "cached": lambda row: row["cached_bytes"],
        "waste": lambda row: row["memory"] - row["in_use_bytes"],
    }
    for more in ([], ["--by-arena"]):
        found = run_json(open_session(make_allocator()), "--sort", sort, *more)["caches"]
        if sort == "size":
            held = [(row["arena"] or "", row["size"] or row["memory"] // max(row["total"], 1)) for row in found]
            assert held == sorted(held)
        else:
            values = [keys[sort](row) for row in found]
            assert values == sorted(values, reverse=True) and len(set(values)) > 2


def test_limit_cuts_rows_but_not_sums() -> None:
    text = run(open_session(make_allocator()), "--sort", "memory", "--limit", "2")[1]
    lines = find_rows(text)
    assert [line.split()[0] for line in lines] == ["large", "2–4", "all", "…", "1"]
    assert lines[3] == "  … 2 more size classes (--limit 0 shows all)"
    assert lines[2].split()[1:4] == ["32", "6", "33"]
    made = [len(run_json(open_session(make_allocator()), *more)["caches"]) for more in ((), ("--limit", "2"), ("--limit", "0"))]
    assert made == [5, 2, 5]


def test_threads() -> None:
    made = open_session(make_allocator())
    assert [(kept["thread"], kept["name"], kept["blocks"], kept["bytes"]) for kept in run_json(made)["threads"]] == [
        (41, "32", 3, 96),
        (41, "2048-4095", 1, 3000),
        (42, "32", 2, 64),
    ]
    lines = run(made, "--by-thread")[1].splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith(("  41", "  42", "  all"))] == [
        "41 2 4 3.0 KiB",
        "42 1 2 64 B",
        "all 6 3.1 KiB",
        "41 32 3 96 B",
        "41 2–4 KiB 1 2.9 KiB",
        "42 32 2 64 B",
    ]
    none = make_allocator()
    none.threads = []
    assert "no thread caches of counting with blocks in them" in run(open_session(none), "--by-thread")[1]


def test_an_allocator_without_counters() -> None:
    listed = ListAllocator(
        OTHER, OTHER + 0x1000, [Listed(OTHER, 48), Listed(OTHER + 64, 48, State.CACHED), Listed(OTHER + 128, 100, State.FREE)]
    )
    found = run_json(open_session(listed))
    assert [(row["name"], row["in_use"], row["cached"], row["free"]) for row in found["caches"]] == [("48", 1, 1, 0), ("100", 0, 0, 1)]
    assert found["arenas"] == [] and found["totals"][0]["mapped"] == 0x1000
    assert "listed has no arenas" in run(open_session(listed), "--by-arena")[1]


def test_several_allocators_and_one_of_them() -> None:
    made = open_session(make_allocator(), ListAllocator(OTHER, OTHER + 0x1000, [Listed(OTHER, 48)]))
    found = run_json(made)
    assert [(total["allocator"], total["instance"]) for total in found["totals"]] == [("counting", 0), ("listed", 1)]
    assert {row["instance"] for row in found["caches"] if row["allocator"] == "listed"} == {1}
    text = run(made)[1]
    assert "counting and listed have mapped" in text and "--allocator counting" in text
    one = run_json(made, "--allocator", "listed")
    assert [total["allocator"] for total in one["totals"]] == ["listed"] and len(one["caches"]) == 1
    with pytest.raises(UsageError, match="no allocator 'tcmalloc' in this process; found: counting, listed"):
        run(made, "--allocator", "tcmalloc")


def test_an_allocator_that_wraps_another() -> None:
    idle = CountingAllocator(OTHER, OTHER + 0x1000, [], [], [Arena("main", 0, 0, 0, 0)])
    text = run(open_session(make_allocator(), idle))[1]
    assert "counting 3.1 in libcounting.so: holds no memory" in text and "that counting has mapped" in text and "\n\n\n" not in text
    assert run(open_session(idle))[0] == 2 and "holds no memory" in run(open_session(idle))[1]


def test_memory_lent_to_another_allocator_counts_once() -> None:
    class LendingAllocator(CountingAllocator):
        def heaps(self) -> Sequence[Heap]:
            (heap,) = super().heaps()
            heap.inner = array("Q", [HEAP + 0x80000, HEAP + 0x90000])
            return [heap]

    outer = LendingAllocator(HEAP, HEAP + 0x100000, make_blocks(HEAP, CACHES), CACHES, ARENAS)
    inner = ListAllocator(OTHER, OTHER + 0x10000, [Listed(OTHER, 48)])
    made = open_session(outer, inner)
    assert [total["lent"] for total in run_json(made)["totals"]] == [0x10000, 0]
    text = run(made, width=200)[1]
    assert "64 KiB used by other allocators" in text.splitlines()[0]
    assert f"of the {size(150000)} that counting and listed have mapped" in text


def test_free_memory_not_returned_is_reported() -> None:
    """A process can look large because its allocator does not return free memory. `caches` reports this first."""
    caches = [make_class("a", 4000, 10, 0, 0, "2048-4095"), make_class("a", 1 << 16, 0, 2, 20, "65536-131071")]
    arenas = [Arena("a", 40000, 2 << 16, 20 << 16, 3 << 20, {}, 1 << 20)]
    text = run(open_session(CountingAllocator(HEAP, HEAP + 0x200000, make_blocks(HEAP, caches), caches, arenas)))[1]
    assert "  counting keeps 2.4 MiB (79 %) unused, 128 KiB of it in thread caches: free, not leaked" in text
    assert "caches --sort free" in text
    assert "unused" not in run(open_session(make_allocator()))[1]


@pytest.mark.parametrize("options", [(), ("--by-arena",), ("--by-thread",), ("--by-arena", "--by-thread", "--sort", "waste")])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int, options: tuple[str, ...]) -> None:
    long = "an arena with a name that is far too long for any table, and then some"
    huge = [one._replace(arena=long, in_use=10**11, cached=10**10, free=10**9, allocs=10**13, fails=10**7) for one in CACHES]
    made = CountingAllocator(HUGE, HUGE + 0x1000, [Listed(HUGE, 48)], huge, [Arena(long, 1 << 45, 1 << 44, 1 << 43, 1 << 46, {}, 1 << 42)])
    made.threads = [ThreadCache(1 << 22, 0x7000, "1048576-2097151", 0, 10**11, 10**15)]
    for session_ in (open_session(made), open_session(make_allocator())):
        text = run(session_, *options, width=width)[1]
        assert [line for line in text.splitlines() if len(line) > width] == []


def test_a_name_from_the_target_is_escaped() -> None:
    made = open_session(make_allocator([make_class("\x1b[31mred", 32, 2, 0, 0), make_class("a", 48, 1, 0, 0, "\x1b]0;x")], []))
    for options in ((), ("--by-arena",), ("--json",), ("--json", "--by-arena")):
        assert "\x1b" not in run(made, *options)[1]
    caches = json.loads(run(made, "--json", "--by-arena")[1])["caches"]
    assert {(one["arena"], one["name"]) for one in caches} == {("\x1b[31mred", "32"), ("a", "\x1b]0;x")}


def test_classes_that_contradict_the_heaps_are_reported() -> None:
    wrong = [CACHES[0]._replace(in_use=21, in_use_bytes=21 * 32), *CACHES[1:]]
    made = CountingAllocator(HEAP, HEAP + 0x100000, make_blocks(HEAP, CACHES), wrong, ARENAS)
    warnings = run_json(open_session(made))["warnings"]
    assert warnings[0] == (
        "counting 3.1: the size classes have 33 blocks in use (45,728 bytes), the heaps 32 (45,696 bytes): one of the two is wrong"
    )
    assert warnings[1] == "counting 3.1: the arenas have 45,696 bytes in use, the size classes 45,728"
    assert run(open_session(made))[1].splitlines()[-1].startswith("warning: counting 3.1: the arenas have")


def test_suggested_commands_can_be_typed() -> None:
    for options in ((), ("--by-arena",), ("--by-thread",), ("--sort", "memory")):
        made = open_session(make_allocator())
        text = run(made, *options)[1]
        tail = text[text.index("  next: ") + 8 :]
        lines = [line.strip() for line in tail.splitlines()]
        assert len(lines) >= 2
        for line in lines:
            prog, *words = shlex.split(line)
            assert prog == "leaks"
            assert commands.execute(lambda: open_session(make_allocator()), words, io.StringIO()) == 0


def test_no_allocator_is_a_failure() -> None:
    status, text = run(open_session())
    assert status == 2 and text.startswith("no allocator found")
    assert run_json(open_session())["totals"] == []
    assert run(open_session(make_allocator()))[0] == 0


def test_interruption() -> None:
    made = open_session(make_allocator(), stop_after=0)
    with pytest.raises(Interrupted):
        run(made)


@pytest.mark.parametrize("line", [("--sort", "colour"), ("--limit", "-1"), ("--limit", "many"), ("word",)])
def test_invalid_arguments_are_refused(line: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(open_session(make_allocator()), *line)


def test_help_and_completion() -> None:
    status, text = run(open_session(make_allocator()), "--help")
    assert status == 0 and "leaks caches --sort memory --limit 10" in text
    assert commands.complete(["caches"], "--by") == ["--by-arena", "--by-thread"]
    assert commands.complete(["caches", "--sort"], "") == list(CACHE_KEYS)


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 9999, 10000, 99949, 99950, 999499, 999500, 10**10, 10**13)] == [
        *("0", "9,999", "10.0 k", "99.9 k", "100 k", "999 k", "1.0 M", "10.0 G", "10.0 T"),
    ]
    assert [percent(*pair) for pair in ((0, 0), (0, 5), (1, 1000), (999, 1000), (7, 7))] == ["–", "0 %", "<1 %", "99 %", "100 %"]
