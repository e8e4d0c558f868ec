"""Profiles in each format, read with the format's own reader or by its specification. Also the files that a failure leaves."""

from __future__ import annotations

import contextlib
import csv
import errno
import os
import random
import sqlite3
import stat
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fuzz_outputs
import profilefiles
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.audit.block_batches import Batch, BlockNames
from findleaks.commands.export import render
from findleaks.errors import FindleaksError, UsageError
from findleaks.escaping import visible
from findleaks.report import files
from findleaks.report.block_files import COLUMNS, write_csv, write_sqlite
from findleaks.report.block_parquet import write_parquet
from findleaks.report.flamegraph.tree import build_tree
from findleaks.report.profile import Frame, Measure, Profile, Sample
from findleaks.target.base import Module, Region

HOSTILE = '</script><script>document.title="owned"</script>@META@;\u202ename'
BOTH = (Measure("lost_blocks", "count", "Lost blocks"), Measure("lost_bytes", "bytes", "Lost bytes"))
MODULES = [
    Module("/opt/shop/shop", 0x400000, 0x400000, 0x500000, "c0ffee"),
    Module("/lib/libc.so.6", 0x7F0000000000, 0x7F0000000000, 0x7F0000200000),
]
REGIONS = [
    Region(0x400000, 0x500000, True, False, True, "/opt/shop/shop", 0x1000),
    Region(0x7F0000000000, 0x7F0000200000, True, False, True, "/lib/libc.so.6", 0),
]


def make_profile(count: int, compared: bool = False, seed: int = 7) -> Profile:
    """Return stacks of a program with 40 functions in two files. Some functions have one name in different files."""
    chance = random.Random(seed)
    frames = []
    for at in range(40):
        module, base = ("shop", 0x400000) if at % 3 else ("libc.so.6", 0x7F0000000000)
        frames += [Frame(f"work_{at}::run", base + at * 64 + place, module, f"src/{at}.c", 10 + place) for place in (1, 9)]
    samples = []
    for _ in range(count):
        stack = tuple(chance.choice(frames[: 8 + 10 * depth]) for depth in range(chance.randrange(1, 9)))
        blocks = chance.randrange(1, 50)
        before = (chance.randrange(50), chance.randrange(5000)) if compared else ()
        samples.append(Sample(stack, (blocks, blocks * chance.choice([16, 64, 4096])), before))
    return Profile("Lost blocks: a program", BOTH, samples, compared, time=1.7e9, regions=REGIONS, modules=MODULES)


def add_samples(profile: Profile, values: Callable[[Sample], tuple[int, ...]]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return the samples by the names of their frames, without those that are 0."""
    sums: dict[tuple[str, ...], tuple[int, ...]] = {}
    for sample in profile.samples:
        key = tuple(frame.name for frame in sample.stack)
        sums[key] = tuple(a + b for a, b in zip(sums.get(key, (0,) * len(values(sample))), values(sample)))
    return {key: value for key, value in sums.items() if any(value)}


def write_profile(folder: Path, profile: Profile, form: str, name: str) -> Path:
    (folder / name).write_bytes(render(profile, form))
    return folder / name


def test_folded(tmp_path: Path) -> None:
    profile = make_profile(300)
    found = profilefiles.parse_folded(write_profile(tmp_path, profile, "folded", "a.folded"))
    assert found == add_samples(profile, lambda one: one.values[1:])
    assert list(found.values()) == sorted(found.values(), reverse=True)
    compared = make_profile(300, True)
    found = profilefiles.parse_folded(write_profile(tmp_path, compared, "folded", "b.folded"), 2)
    assert found == add_samples(compared, lambda one: (one.before[1], one.values[1]))


def test_pprof(tmp_path: Path) -> None:
    profile = make_profile(300)
    profile.rate = 4096
    file = write_profile(tmp_path, profile, "pprof", "a.pb.gz")
    names, samples, addresses = profilefiles.pprof_samples(file)
    assert names == ["lost_blocks/count", "lost_bytes/bytes"]
    assert samples == add_samples(profile, lambda one: one.values)
    assert {int(address, 16) for address in addresses.values()} <= {frame.address for one in profile.samples for frame in one.stack}
    raw = profilefiles.pprof(file, "-raw")
    assert "Period: 4096" in raw and "PeriodType: space bytes" in raw
    assert "/opt/shop/shop c0ffee" in raw and "0x400000/0x500000" in raw
    own: Counter[str] = Counter()
    for one in profile.samples:
        own[one.stack[-1].name] += one.values[1]
    top = profilefiles.pprof(file, "-top", "-unit=B", "-nodecount=1000", "-nodefraction=0")
    assert top.startswith("File: shop\n") and "Type: lost_bytes\n" in top
    listed = {line.split()[-1]: int(line.split()[0].removesuffix("B")) for line in top.split("cum%\n")[1].splitlines()}
    assert {name: size for name, size in listed.items() if size} == own


def test_pprof_of_two_snapshots(tmp_path: Path) -> None:
    profile = make_profile(300, True)
    names, samples, _ = profilefiles.pprof_samples(write_profile(tmp_path, profile, "pprof", "a.pb.gz"))
    assert names == ["growth_of_lost_blocks/count", "growth_of_lost_bytes/bytes"]
    assert samples == add_samples(profile, lambda one: tuple(now - was for now, was in zip(one.values, one.before)))
    assert any(value < 0 for values in samples.values() for value in values)


def test_inlined_frames_share_a_location(tmp_path: Path) -> None:
    stack = (Frame("main", 0x401000, "shop"), Frame("outer", 0x402000, "shop", "a.c", 7), Frame("inner", 0x402000, "shop", "a.h", 3, True))
    profile = Profile("t", BOTH, [Sample(stack, (1, 48))], modules=MODULES, regions=REGIONS)
    file = write_profile(tmp_path, profile, "pprof", "a.pb.gz")
    _, samples, _ = profilefiles.pprof_samples(file)
    raw = profilefiles.pprof(file, "-raw")
    assert raw.split("Locations\n")[1].count("0x402000") == 1 and "inner a.h:3" in raw and "outer a.c:7" in raw
    assert list(samples) == [("main", "outer", "inner")]
    heap = write_profile(tmp_path, profile, "heap", "a.heap").read_text()
    assert "     1:       48 [     1:       48] @ 0x402000 0x401000\n" in heap


def test_speedscope(tmp_path: Path) -> None:
    profile = make_profile(300)
    found = profilefiles.speedscope(write_profile(tmp_path, profile, "speedscope", "a.speedscope.json"))
    for at, title in enumerate(("Lost blocks", "Lost bytes")):
        assert {stack: (value,) for stack, value in found[title].items()} == add_samples(profile, lambda one, at=at: (one.values[at],))
    compared = make_profile(300, True)
    found = profilefiles.speedscope(write_profile(tmp_path, compared, "speedscope", "b.speedscope.json"))
    assert {stack: (value,) for stack, value in found["Lost bytes before"].items()} == add_samples(compared, lambda one: (one.before[1],))
    assert {stack: (value,) for stack, value in found["Lost bytes after"].items()} == add_samples(compared, lambda one: (one.values[1],))


def test_heap(tmp_path: Path) -> None:
    profile = make_profile(100)
    file = write_profile(tmp_path, profile, "heap", "a.heap")
    names, samples = _heap(file)
    expected: Counter[tuple[int, ...]] = Counter()
    for one in profile.samples:
        expected[tuple(frame.address for frame in reversed(one.stack))] += one.values[1]
    assert samples == expected and names == "objects/count space/bytes"
    assert file.read_text().endswith("7f0000000000-7f0000200000 r-xp 00000000 00:00 0 /lib/libc.so.6\n")


def test_names_are_escaped_for_terminals(tmp_path: Path) -> None:
    """Names of mappings, modules and the process, in the formats that are text or that a program prints."""
    acting = "/x\x1b[31m\n\r\u202e\udc9b/y"
    profile = make_profile(3)
    profile.title = acting
    profile.regions = [Region(0x400000, 0x500000, True, False, True, acting, 0)]
    profile.modules = [Module(acting, 0x400000, 0x400000, 0x500000)]
    for form, end in (("heap", ".heap"), ("pprof", ".pb.gz"), ("folded", ".folded"), ("speedscope", ".json"), ("flamegraph", ".html")):
        file = write_profile(tmp_path, profile, form, f"a{end}")
        assert fuzz_outputs.wrong_file(file) == "", form
    assert "/x\\x1b[31m\\012\\r\\u202e\\x9b/y" in (tmp_path / "a.heap").read_text()


def _heap(file: Path) -> tuple[str, Counter[tuple[int, ...]]]:
    """Return the sample types, and the bytes by address. Like `go tool pprof`, subtract one from each address, because
    it is a return address."""
    raw = profilefiles.pprof(file, "-raw")
    lines = raw.split("Samples:\n")[1].split("Locations\n")[0].splitlines()
    rest = raw.partition("Locations\n")[2]
    locations = {line.split(":")[0].strip(): int(line.split()[1], 16) for line in rest.split("Mappings\n")[0].splitlines()}
    sums: Counter[tuple[int, ...]] = Counter()
    for line in lines[1:]:
        values, _, stack = line.partition(":")
        if values.strip()[:1].isdigit() and stack.split():
            numbers = [locations[word] for word in stack.split() if word in locations]
            sums[tuple(number + 1 for number in numbers)] += int(values.split()[1])
    return lines[0], sums


def test_a_heap_profile_needs_addresses_and_one_snapshot() -> None:
    names = Profile("t", BOTH, [Sample((Frame("definite"),), (1, 48))])
    threads = Profile("t", (Measure("threads", "count", "Threads"),), [Sample((Frame("main", 7),), (1,))])
    for profile, why in ((names, "stacks of addresses"), (threads, "blocks and bytes"), (make_profile(3, True), "blocks and bytes")):
        with pytest.raises(UsageError, match=why):
            render(profile, "heap")


@pytest.mark.parametrize("compared", [False, True])
def test_a_page_has_every_stack(compared: bool, tmp_path: Path) -> None:
    profile = make_profile(500, compared)
    meta, nodes = profilefiles.flamegraph(write_profile(tmp_path, profile, "flamegraph", "a.html"))
    expected: dict[tuple[tuple[str, str], ...], tuple[int, ...]] = {}
    for one in profile.samples:
        key = tuple((frame.name, frame.module) for frame in one.stack)
        values = (one.before[0], one.values[0], one.before[1], one.values[1]) if compared else one.values
        expected[key] = tuple(a + b for a, b in zip(expected.get(key, (0,) * 4), values))
    assert {path: values for path, values in nodes.items() if path in expected} == expected
    assert not any(any(values) for path, values in nodes.items() if path not in expected)
    assert meta["title"] == profile.title and meta["main"] == 1
    # Children come largest first.
    rank: Counter[tuple[tuple[str, str], ...]] = Counter()
    for path, values in expected.items():
        for length in range(len(path) + 1):
            rank[path[:length]] += max(values[2:]) if compared else values[1]
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    for path in list(nodes)[1:]:
        assert rank[path] <= seen.get(path[:-1], rank[path])
        seen[path[:-1]] = rank[path]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 1 << 62)), max_size=30), st.integers(1, 20))
def test_a_smaller_tree_loses_nothing(stacks: list[tuple[list[int], int]], most: int) -> None:
    samples = [Sample(tuple(Frame(f"f{at}") for at in stack), (1, size)) for stack, size in stacks]
    found = build_tree(Profile("t", BOTH, samples), most)
    assert sum(found.own[0]) == len(stacks) and sum(found.own[1]) == sum(size for _, size in stacks)
    whole = build_tree(Profile("t", BOTH, samples), 1 << 30)
    assert whole.left_out == 0 and len(found.label) + found.left_out == len(whole.label)
    assert len(found.label) <= most + 1
    assert found.depth[0] == 0 and all(after <= before + 1 and after > 0 for before, after in zip(found.depth, found.depth[1:]))


def test_hostile_names(tmp_path: Path) -> None:
    from findleaks.report.profile import frame_name

    name = frame_name(HOSTILE)
    profile = Profile(HOSTILE, BOTH, [Sample((Frame(name),), (1, 48))], notes=[HOSTILE])
    text = write_profile(tmp_path, profile, "flamegraph", "a.html").read_text(encoding="utf-8")
    assert text.count("<script") == 3 and "owned" in text and "\u202e" not in text
    assert list(profilefiles.flamegraph(tmp_path / "a.html")[1])[1] == ((name, ""),)
    assert list(profilefiles.parse_folded(write_profile(tmp_path, profile, "folded", "a.folded"))) == [(name.replace(";", ":"),)]
    assert list(profilefiles.speedscope(write_profile(tmp_path, profile, "speedscope", "a.json"))["Lost bytes"]) == [(name,)]
    assert list(profilefiles.pprof_samples(write_profile(tmp_path, profile, "pprof", "a.pb.gz"))[1]) == [(name,)]


def test_invalid_figures(tmp_path: Path) -> None:
    profile = Profile("t", BOTH, [Sample((Frame("f", (1 << 64) - 1, "m", "f.c", 1 << 70),), (1 << 70, 1 << 80))], modules=MODULES)
    assert profilefiles.pprof_samples(write_profile(tmp_path, profile, "pprof", "a.pb.gz"))[1] == {("f",): ((1 << 63) - 1,) * 2}
    assert profilefiles.flamegraph(write_profile(tmp_path, profile, "flamegraph", "a.html"))[1][(("f", "m"),)] == (1 << 51, 1 << 51)
    assert profilefiles.parse_folded(write_profile(tmp_path, profile, "folded", "a.folded")) == {("f",): (1 << 80,)}
    assert profilefiles.speedscope(write_profile(tmp_path, profile, "speedscope", "a.json"))["Lost blocks"] == {("f",): 1 << 70}


def test_an_empty_profile(tmp_path: Path) -> None:
    profile = Profile("nothing", BOTH, [])
    assert profilefiles.flamegraph(write_profile(tmp_path, profile, "flamegraph", "a.html"))[1] == {(): (0, 0)}
    assert write_profile(tmp_path, profile, "folded", "a.folded").read_bytes() == b""
    assert profilefiles.speedscope(write_profile(tmp_path, profile, "speedscope", "a.json")) == {"Lost blocks": {}, "Lost bytes": {}}
    assert profilefiles.pprof_samples(write_profile(tmp_path, profile, "pprof", "a.pb.gz"))[1] == {}


ROWS = [
    {
        "address": hex(start),
        "size": 48,
        "state": "in-use",
        "kind": kind,
        "allocator": "glibc",
        "arena": "main",
        "site": None,
        "type": type_,
        "hint": hint,
        "type_from": source,
        "type_sure": sure,
    }
    for start, kind, type_, hint, source, sure in (
        (0x55D0C0A012A0, "definite", None, '"a, \\"b\\""', None, None),
        (0xFFFF800000000010, "reachable", "ns::Type<int, 3>", None, "inferred", False),
    )
]


def make_batches(rows: Iterable[Mapping[str, Any]], names: dict[int, BlockNames]) -> Iterator[Batch]:
    """Return a batch for each row: its columns, with its names in `names`."""
    for number, row in enumerate(rows):
        known = (row["type_from"] or "", {None: "", True: "true", False: "false"}[row["type_sure"]])
        names[number] = BlockNames(row["state"], row["kind"] or "", row["allocator"], row["arena"], row["type"] or "", *known)
        columns = array("I", [number]), array("Q", [int(row["address"], 16)]), array("Q", [row["size"]]), array("Q", [number])
        yield Batch(*columns, [row["hint"] or ""], [row["site"] or 0])


def as_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    names: dict[int, BlockNames] = {}
    write_csv(str(path), make_batches(rows, names), names)


def as_sqlite(path: Path, rows: Iterable[Mapping[str, Any]], about: Mapping[str, str], sites: Sequence[tuple[object, ...]] = ()) -> None:
    names: dict[int, BlockNames] = {}
    write_sqlite(str(path), make_batches(rows, names), names, about, sites)


def as_parquet(path: Path, rows: Iterable[Mapping[str, Any]], about: Mapping[str, str]) -> None:
    names: dict[int, BlockNames] = {}
    write_parquet(str(path), make_batches(rows, names), names, about)


def test_blocks_as_parquet(tmp_path: Path) -> None:
    rows = [{**row, "site": site} for row, site in zip(ROWS, (None, 7))]
    as_parquet(tmp_path / "a.parquet", rows, {"process": "a\udcff"})
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert found.to_pylist() == [{**row, "address": int(row["address"], 16)} for row in rows]
    assert [str(field.type) for field in found.schema][:2] == ["uint64", "uint64"]
    assert found.schema.metadata[b"process"] == b"a\\xff"


def test_parquet_without_blocks(tmp_path: Path) -> None:
    as_parquet(tmp_path / "a.parquet", [], {})
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert found.num_rows == 0 and tuple(found.schema.names) == COLUMNS


@pytest.mark.parametrize("count", [49, 50, 51, 149])
def test_rows_of_several_statements(count: int, tmp_path: Path) -> None:
    """SQLite gets fifty rows in each statement, and the remaining rows in separate statements."""
    base = array("Q", range(16, 16 * count + 16, 16))
    hints = [f"{number} \U0001f600" for number in range(count)]
    names = {5: BlockNames("free", "", "a'b", "", ""), 6: BlockNames("in-use", "definite", "", "main", "T", "rtti", "true")}
    known = (None, None), ("rtti", 1)
    numbers = array("Q", (5 + number % 2 for number in range(count)))
    batch = Batch(array("I", range(count)), base, base, numbers, hints, list(range(count)))
    write_sqlite(str(tmp_path / "a.db"), [batch], names, {})
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as found:
        rows = found.execute("SELECT * FROM blocks").fetchall()
    kinds = (("free", None, "a'b", ""), None), (("in-use", "definite", "", "main"), "T")
    assert rows == [(at, at, *kinds[n % 2][0], n or None, kinds[n % 2][1], hints[n], *known[n % 2]) for n, at in enumerate(base)]


def test_blocks_as_csv_and_sqlite(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", ROWS)
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    words = {None: "", True: "true", False: "false"}
    assert found == [{name: words[row[name]] if row[name] in words else str(row[name]) for name in COLUMNS} for row in ROWS]
    top = 0xFFFFFFFFFF600000
    as_sqlite(tmp_path / "a.db", ROWS, {"process": "a"}, [(1, 0, top, "vsyscall", 0, "", None, None)])
    base = sqlite3.connect(tmp_path / "a.db")
    rows = base.execute(f"SELECT {', '.join(COLUMNS)} FROM blocks ORDER BY size, hint IS NULL").fetchall()
    assert [(hex(address % (1 << 64)), *rest) for address, *rest in rows] == [tuple(row[name] for name in COLUMNS) for row in ROWS]
    assert base.execute("SELECT blocks, bytes FROM totals WHERE kind = 'definite'").fetchall() == [(1, 48)]
    assert base.execute("SELECT site, frame, address, function FROM sites").fetchall() == [(1, 0, top - (1 << 64), "vsyscall")]
    assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    base.close()


def test_text_from_a_core_is_no_formula(tmp_path: Path) -> None:
    """A spreadsheet executes a cell that begins with one of these characters, and a class name from RTTI can begin with any character."""
    texts = ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "a=1"]
    as_csv(tmp_path / "a.csv", [{**ROWS[0], "type": text} for text in texts])
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert [row["type"] for row in csv.DictReader(file)] == [*(f"'{visible(text)}" for text in texts[:-1]), "a=1"]


def test_text_from_a_core_is_escaped(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and terminal control sequences, in the names of modules, types and functions."""
    name, shown = "a\udcff\x1b[2J\x7f", "a\\xff\\x1b[2J\\x7f"
    rows = [{**ROWS[0], "type": name}]
    as_csv(tmp_path / "a.csv", rows)
    assert shown in (tmp_path / "a.csv").read_text(encoding="utf-8")
    as_sqlite(tmp_path / "a.db", rows, {"process": name}, [(1, 0, 16, name, 0, name, None, None)])
    as_parquet(tmp_path / "a.parquet", rows, {})
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["type"].to_pylist() == [shown]
    base = sqlite3.connect(tmp_path / "a.db")
    found = [
        *base.execute("SELECT type FROM blocks"),
        *base.execute("SELECT function FROM sites"),
        *base.execute("SELECT value FROM about"),
    ]
    assert found == [(shown,)] * 3
    base.close()


def _fail() -> Iterator[dict[str, object]]:
    yield from ROWS
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["a.csv", "a.db", "a.parquet"])
def test_no_incomplete_file_remains(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    write = {"a.csv": partial(as_csv, file), "a.db": partial(as_sqlite, file, about={}), "a.parquet": partial(as_parquet, file, about={})}[
        name
    ]
    for before in (None, "as it was"):
        if before:
            file.write_text(before)
        with pytest.raises(FindleaksError, match="cannot be written: no space left on device"):
            write(rows=_fail())
        assert [path.name for path in tmp_path.iterdir()] == ([name] if before else [])
        assert not before or file.read_text() == before
    with pytest.raises(KeyboardInterrupt):
        write(rows=_interrupt())
    assert file.read_text() == "as it was" and len(list(tmp_path.iterdir())) == 1


def _interrupt() -> Iterator[dict[str, object]]:
    yield ROWS[0]
    raise KeyboardInterrupt


def test_files_are_replaced_atomically(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with files.replacing(str(link)) as part:
        Path(part).write_text("new")
        assert real.read_text() == "old"
    assert link.is_symlink() and real.read_text() == "new" and stat.S_IMODE(real.stat().st_mode) == 0o640
    reading, writing = os.pipe()
    files.write_file(f"/dev/fd/{writing}", b"to a pipe")
    assert os.read(reading, 100) == b"to a pipe"
    with pytest.raises(FindleaksError, match="/dev/full: cannot be written: no space left"):
        files.write_file("/dev/full", b"x")
    for path, why in ((tmp_path, "is a directory"), (tmp_path / "none" / "a", "no such file"), (real / "a", "")):
        with pytest.raises(FindleaksError, match=f"cannot be written: {why}"):
            files.require_writable(str(path))
        with pytest.raises(FindleaksError, match="cannot be written"):
            files.write_file(str(path), b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
