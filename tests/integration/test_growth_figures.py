"""Every figure of `diff` is the difference of what the commands, run by themselves, say of each of two cores.

Each section of figures has a command whose JSON it must equal: `COMMANDS`. Names are made of that JSON here, by their description in
docs/over-time.md and common/history/figures.py, and not by the code that makes them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Optional

import jvms
import nodes
import pytest
import real
import rubies
import truth
from debuggers import ran
from growing import Rounds

from findleaks import commands
from findleaks.answers.snapshots import take_snapshot
from findleaks.commands.diff import SECTIONS, compare, diff
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import load, save
from findleaks.session import Session
from findleaks.target.core import open_core
from findleaks.target.program import program_name

COMMANDS = {
    "verdict": ("total", "share"),
    "find": ("kind", "lost", "garbage type"),
    "blocks": ("type",),
    "caches": ("allocator", "cache"),
    "roots": ("root", "field", "container", "objects"),
    "runtime": ("counter", "heap", "runtime type", "native"),
    "scopes": ("handles", "handle value"),
    "stacks": ("threads",),
}
"""The sections of figures by the command that says them. What mappings are, /proc says: below."""
OPTIONS = {"find": ["--limit", "0"], "caches": ["--limit", "0"], "runtime": ["--limit", "0"], "roots": ["--depth", "3"]}
SEVERAL = "several roots"

Key = tuple[str, str, str]
"""Section, whole and name."""
Amount = tuple[Optional[int], Optional[int]]
"""Number and bytes; None for what the command does not have."""
Amounts = dict[Key, Amount]


def asked(session: Session, word: str, *options: str) -> Any:
    """The command's JSON: one object, or a list of them."""
    out = io.StringIO()
    commands.execute(lambda: session, [word, "--json", *OPTIONS.get(word, ()), *options], out)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    return found if word == "blocks" else found[0]


def plain(name: str) -> str:
    """A root's name without counts and addresses."""
    return re.sub(r" ?\(\d[\d.,]*\b[^()]*\)", "", re.sub(r"(?<!\+)\b0x[0-9a-f]{5,16}\b", "…", name)).strip()


def rows_of_lost(answer: Any) -> Iterator[tuple[Key, Amount]]:
    for one in answer["groups"]:
        words = [f"{one['size']} B" if one["size"] is not None else "several sizes"]
        words += [f"cycle of {one['cycle']}"] if one["cycle"] > 1 else []
        name = ", ".join(words) if not one["type"] else f"{one['type']} ({', '.join(words)})"
        name = one["type"] if one["runtime"] else name
        yield ("lost", one["kind"], name), (one["blocks"] + one["indirect_blocks"], one["bytes"] + one["indirect_bytes"])


def instances(totals: Any) -> dict[int, str]:
    """Names of allocators by their index; a later one of a name by its number among them."""
    found: dict[int, str] = {}
    for one in totals:
        before = sum(other["allocator"] == one["allocator"] for other in totals[: one["instance"]])
        found[one["instance"]] = one["allocator"] + (f" ({('second', 'third')[before - 1]})" if before else "")
    return found


def rows_of_caches(answer: Any) -> Iterator[tuple[Key, Amount]]:
    names = instances(answer["totals"])
    for total in answer["totals"]:
        for state in ("in_use", "cached", "free", "spare"):
            name = f"{names[total['instance']]}: {state.replace('_', ' ')}"
            yield ("allocator", "", name), (total["blocks"].get(state), total[state])
    for cache in answer["caches"]:
        yield ("cache", names[cache["instance"]], cache["name"]), (cache["in_use"], cache["in_use_bytes"])


def rows_of_roots(answer: Any) -> Iterator[tuple[Key, Amount]]:
    for root in answer["roots"]:
        name = plain(root["name"])
        yield ("root", "", name), (root["retained_blocks"], root["retained_bytes"])
        if objects := root.get("objects"):
            yield ("objects", objects["runtime"], name), (objects["count"], objects["bytes"])
        yield from rows_below(root, name, "")
    shared = answer["shared"]
    yield ("root", "", SEVERAL), (shared["retained_blocks"], shared["retained_bytes"])
    for child in shared["children"]:
        if child.get("holders"):
            lasting = [name for name in child["holders"] if not re.search("'s (stack|registers)", name)] or child["holders"]
            holders = list(dict.fromkeys(map(plain, lasting)))
            name = ", ".join(holders[:2]) + (" and others" if len(holders) > 2 else "")
            yield ("field", SEVERAL, name), (child["retained_blocks"], child["retained_bytes"])
            yield from rows_below(child, SEVERAL, name)


def rows_below(node: Any, root: str, path: str) -> Iterator[tuple[Key, Amount]]:
    """Fields by their paths; none whose name is an address, or which is one of several alike."""
    contents = node["container"]
    if contents and contents["length"] is not None:
        yield ("container", root, path or root), (contents["length"], node["retained_bytes"])
    for child in node["children"]:
        if "alike" in child or re.search(r"(?<!\+)\b0x[0-9a-f]{5,}", child["name"]):
            continue
        step = re.sub(r"^block of .*(\+0x[0-9a-f]+)$", r"\1", child["name"])
        where = " → ".join([path, plain(step)] if path else [plain(step)])
        yield ("field", root, where), (child["retained_blocks"], child["retained_bytes"])
        yield from rows_below(child, root, where)


def rows_of_runtimes(answer: Any) -> Iterator[tuple[Key, Amount]]:
    for runtime in answer["runtimes"]:
        name = runtime["name"]
        for counter, value in runtime["counters"].items():
            if isinstance(value, int):
                yield ("counter", name, counter), (value, None)
        for part in runtime["parts"]:
            yield ("heap", name, part["name"]), (None, part["bytes"])
        for one in runtime["types"]:
            yield ("runtime type", name, one["name"]), (one["objects"], one["bytes"])
            if one["native_bytes"]:
                yield ("native", name, one["name"]), (one["native_blocks"], one["native_bytes"])


def expected(session: Session) -> Iterator[tuple[Key, Amount]]:
    """Each figure that the commands' own answers have."""
    verdict = asked(session, "verdict")
    known = verdict["resident"] is not None
    yield ("total", "", "resident" if known else "mapped"), (None, verdict["resident"] if known else verdict["mapped"])
    for share in verdict["shares"]:
        name = f"{share['of']}: {share['share']}" if share["of"] else share["share"]
        yield ("share", "", name), (share.get("count"), share["bytes"])
    found = asked(session, "find")
    for kind, amount in found["totals"].items():
        yield ("kind", "", kind), (amount["blocks"], amount["bytes"])
    yield from rows_of_lost(found)
    managed = set(session.object_types.names) if session.object_types is not None else set()  # rows of the runtime's section
    for block in asked(session, "blocks"):
        if block.get("type") in managed:
            continue
        if block.get("type") is not None and not re.fullmatch(r"FILE|std::string|.*\[\d+\]", block["type"]):  # not by the first word alone
            yield ("type", block["kind"], block["type"]), (1, block["size"])
    yield from rows_of_caches(asked(session, "caches"))
    yield from rows_of_roots(asked(session, "roots"))
    yield from rows_of_runtimes(asked(session, "runtime"))
    for number, isolate in enumerate(asked(session, "scopes").get("isolates", ()), 1):
        yield ("handles", "", f"isolate {number}"), (isolate["handles"], isolate["bytes"])
        for value in isolate["values"]:
            yield ("handle value", f"isolate {number}", plain(value["value"])), (value["handles"], None)
    for stack in asked(session, "stacks")["stacks"]:
        yield ("threads", "", " ← ".join(frame["function"] or frame["module"] or "?" for frame in stack["frames"])), (stack["count"], None)


def said(session: Session) -> Amounts:
    """The figures; those of one name are added."""
    made: Amounts = {}
    for key, amount in expected(session):
        before = made.get(key)
        made[key] = amount if before is None else (_plus(before[0], amount[0]), _plus(before[1], amount[1]))
    consistent(session, made)
    return made


def _plus(one: Optional[int], other: Optional[int]) -> Optional[int]:
    return other if one is None else one if other is None else one + other


def consistent(session: Session, figures: Amounts) -> None:
    """What has to add up within one moment."""
    verdict, found = asked(session, "verdict"), asked(session, "find")
    total = next(sizes for (section, _, _), (_, sizes) in figures.items() if section == "total")
    assert sum(share["bytes"] for share in verdict["shares"]) == total
    lost = [amount for key, amount in figures.items() if key[0] == "lost"]
    for at, unit in enumerate(("blocks", "bytes")):
        assert sum(amount[at] or 0 for amount in lost) == sum(found["totals"][kind][unit] for kind in ("definite", "possible", "indirect"))
    # All objects of a class that are leaked but hang from nothing.
    for group in asked(session, "find", "--by", "type")["groups"]:
        if group["type"] and not group["runtime"]:
            number, size = figures["type", group["kind"], group["type"]]
            assert group["blocks"] <= (number or 0)
            assert group["bytes"] <= (size or 0)


def at(key: Key, amount: int, figures: Amounts) -> Optional[int]:
    """The number (0) or bytes (1) of a figure at a moment: 0 if it is not there; unknown if it is a field that may not be listed."""
    if key in figures:
        return figures[key][amount]
    return None if key[0] in ("field", "container") and ("root", "", key[1]) in figures else 0


def answered(moments: list[Snapshot], *words: str) -> Any:
    """What `diff` says of these: its JSON."""
    args = commands.parse(commands.parser(diff, "findleaks"), ["--json", "--limit", "0", *words])
    assert args is not None
    (body,) = compare(moments, args).json()
    return json.loads(json.dumps(body))


def moments(first: Path, last: Path, folder: Path) -> tuple[list[Snapshot], Amounts, Amounts]:
    """The first as a file of figures, whose core the commands then read again; the last as a core, of which the commands have read all
    before. And what they say of each."""
    path = folder / "first.snapshot"
    with closing(Session(open_core(str(first)))) as session:
        save(take_snapshot(session, "first"), path, "test")
    with closing(Session(open_core(str(first)))) as session:
        before = said(session)
    with closing(Session(open_core(str(last)))) as session:
        after = said(session)
        found = [load(str(path)), take_snapshot(session, "last", frozenset().union(*SECTIONS.values()))]
    return found, before, after


def check(first: Path, last: Path, folder: Path) -> Mapping[Key, Any]:
    """Every row of `diff` in every section; all rows by section, whole and name."""
    found, before, after = moments(first, last, folder)
    rows = {by: answered(found, "--by", by)["grown"] for by in SECTIONS}
    kernel = [sum(amount[1] or 0 for key, amount in one.items() if key == ("share", "", "kernel")) for one in (before, after)]
    total = answered(found)
    assert total["total"]["bytes"] == [sum(row["bytes"][n] for row in rows["mapping"]) + kernel[n] for n in (0, 1)]
    assert [one["resident"] for one in total["moments"]] == total["total"]["bytes"]
    figures: dict[Key, Any] = {}
    for row in [total["total"], *(row for by, listed in rows.items() for row in listed if by != "mapping")]:
        key = row["what"], row["within"] or "", row["name"]
        assert key not in figures
        figures[key] = row
        assert key in before or key in after, key
        for amount, values in ((0, row["counts"]), (1, row["bytes"])):
            known = [at(key, amount, one) for one in (before, after)]
            has = any(one.get(key, (None, None))[amount] is not None for one in (before, after))
            assert values == (known if has else None), (key, values, known)
        values = row["bytes"] or row["counts"]
        assert row["unit"] == ("bytes" if row["bytes"] else "count")
        assert (row["before"], row["after"]) == (values[0], values[1])
        assert row["delta"] == (None if None in values else values[1] - values[0])
    assert {*before, *after} <= {*figures}
    # The rows that explain the growth are made of the same figures, but for the rest of what is divided.
    for row in total["grown"]:
        for one in [*([] if row["note"] == "rest" or row["name"] == "other groups" else [row]), *row["inside"]]:
            same = figures[one["what"], one["within"] or "", one["name"]]
            # A variable's row, and a part of it, has its objects in the runtime's heap as well.
            objects = [] if one["what"] == "objects" else [part["bytes"] for part in row["inside"] if part["what"] == "objects"]
            sizes = same["bytes"] and [size + sum(more) for size, *more in zip(same["bytes"], *objects)]
            assert (one["counts"], one["bytes"]) == (same["counts"], sizes)
            first_value, last_value = sizes or same["counts"]
            assert (one["before"], one["after"], one["delta"]) == (first_value, last_value, last_value - first_value)
    return figures


def written(one: Any, path: Path) -> Path:
    """A core by findleaks, which says what was resident."""
    ran("snapshot", "--weight", "core", "-o", str(path), "--pid", str(one.pid), check=True)
    return path


def built(file: str) -> Callable[[Path], Rounds]:
    def started(folder: Path) -> Rounds:
        compiler = "g++" if file.endswith(".cpp") else "gcc"
        flags = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")
        subprocess.run([compiler, *flags, "-o", folder / "growth", truth.PROGRAMS / file], check=True)
        return Rounds([str(folder / "growth")], folder / "run", {**os.environ, "MALLOC_PERTURB_": "165"})

    return started


def python(folder: Path) -> Rounds:
    return Rounds([sys.executable, str(truth.PROGRAMS / "growth_held.py")], folder / "run")


def ruby(folder: Path) -> Rounds:
    one = rubies.get(rubies.SYSTEM)
    return Rounds([*one.words, str(truth.PROGRAMS / "growth_held.rb")], folder / "run", one.environment)


def node(version: str, script: str) -> Callable[[Path], Rounds]:
    return lambda folder: Rounds([nodes.get(version), str(truth.PROGRAMS / script)], folder / "run")


def jvm(folder: Path) -> Rounds:
    jvms.compile_java(truth.PROGRAMS / "GrowthChurn.java", folder)
    small = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m")
    return Rounds(["java", *small, "-cp", str(folder), "GrowthChurn"], folder / "run")


HAS_ALL = {"total", "share", "kind", "allocator", "cache", "root", "threads"}
"""Sections of every program."""


@pytest.mark.parametrize(
    ("program", "rounds", "sections"),
    [
        pytest.param(built("growth_map.cpp"), (500, 3000), {"field", "container"}, id="maps"),
        pytest.param(built("growth_kinds.cpp"), (300, 200), {"lost", "type"}, id="lost"),
        pytest.param(python, (500, 3000), {"counter", "heap", "runtime type", "field", "container"}, id="python"),
        pytest.param(ruby, (500, 3000), {"counter", "heap", "runtime type", "native", "objects"}, id="ruby"),
        pytest.param(node("0.10.21", "growth_closing.js"), (1000, 3000), {"handles", "handle value"}, id="node 0.10"),
        pytest.param(
            node("22.12.0", "growth_buffers.js"),
            (50, 90),
            {"handles", "counter", "heap", "runtime type", "native"},
            id="node 22",
            marks=pytest.mark.matrix,
        ),
        pytest.param(jvm, (1, 8), {"counter", "heap"}, id="jvm", marks=pytest.mark.matrix),
    ],
)
def test_every_figure(tmp_path: Path, program: Callable[[Path], Rounds], rounds: tuple[int, int], sections: set[str]) -> None:
    cores, printed = [], []
    with program(tmp_path) as one:
        for number in rounds:
            printed.append(one.round(number))
            cores.append(written(one, tmp_path / f"{number}.core"))
    figures = check(cores[0], cores[1], tmp_path)
    assert HAS_ALL | sections <= {key[0] for key in figures}
    # What the program itself counts.
    for before, after in zip(*printed) if "container" in sections and "counter" not in sections else ():
        name, _, first = before.split()
        (row,) = [row for key, row in figures.items() if key[0] == "container" and re.search(rf"\b{name}$", key[2].partition(" (")[0])]
        assert row["counts"] == [int(first), int(after.split()[-1])]


def test_every_figure_of_a_server(tmp_path: Path) -> None:
    cores = []
    with real.Idle(real.PROGRAMS["redis"], tmp_path / "run") as one:
        for at in range(2):
            keys = "".join(f"SET key{at}:{key} {'v' * 100}\r\n" for key in range(2000)).encode()
            assert real.talk(one.port, keys + b"QUIT\r\n")
            cores.append(written(one, tmp_path / f"{at}.core"))
        ran("snapshot", "-o", str(tmp_path / "live.snapshot"), "--pid", str(one.pid), check=True)
    # Debian's file is redis-check-rdb, which is several programs, by the names that it is called by.
    assert load(str(tmp_path / "live.snapshot")).identity.program == "redis-server"
    with closing(open_core(str(cores[0]))) as core:
        assert program_name(core) == "redis-server"
    figures = check(cores[0], cores[1], tmp_path)
    grown = [row for key, row in figures.items() if key[0] == "kind" and key[2] == "in_use"]
    assert grown[0]["delta"] > 2000 * 100


def test_two_of_one_allocator_are_named_apart(tmp_path: Path) -> None:
    """glibc's, and another that dlmopen(3) loads: in `diff`, and in the commands that say what allocators hold."""
    cores = []
    with built("growth_namespace.c")(tmp_path) as one:
        for number in (3000, 9000):
            one.round(number)
            cores.append(written(one, tmp_path / f"{number}.core"))
    figures = check(cores[0], cores[1], tmp_path)
    counts = {key[1:]: row["counts"] for key, row in figures.items() if key[0] == "cache"}
    # Which of the two libraries is at the lower address, and so the first, is for the loader to say.
    both = {name: {size: counts.get((name, size), [0, 0]) for size in ("40", "104")} for name in ("glibc", "glibc (second)")}
    assert sorted(max(held, key=lambda size: held[size][1]) for held in both.values()) == ["104", "40"]
    assert all(max(held.values())[1] >= 12_000 for held in both.values())
    for word in ("find", "caches", "verdict", "map", "verify"):
        assert re.search(r"glibc [\d.]+ \(second\)", " ".join(ran(word, str(cores[1])).stdout.split())), word


def test_all_figures_have_a_command() -> None:
    """None is left out above."""
    listed = {section for sections in SECTIONS.values() for section in sections} | {"total"}
    assert listed == {section for sections in COMMANDS.values() for section in sections} | {"mapping"}


def test_mappings_are_those_of_smaps(tmp_path: Path) -> None:
    with built("growth_map.cpp")(tmp_path) as one:
        for name, count in (("first", 500), ("last", 9000)):
            one.round(count)
            one.snapshot(name)
            (tmp_path / f"{name}.smaps").write_text(Path(f"/proc/{one.pid}/smaps").read_text())
    words = [str(tmp_path / "run" / f"{name}.snapshot") for name in ("first", "last")]
    rows = json.loads(ran("diff", "--json", "--limit", "0", "--by", "mapping", *words, check=True).stdout)["grown"]
    for at, name in enumerate(("first", "last")):
        said: Counter[str] = Counter()
        head = ""
        for line in (tmp_path / f"{name}.smaps").read_text().splitlines():
            parts = line.split(maxsplit=5)
            if "-" in parts[0] and not parts[0].endswith(":"):
                head = parts[5] if len(parts) > 5 else "anonymous"
            elif parts[0] == "Rss:" and not head.startswith(("[vdso", "[vvar", "[vsyscall")):
                said[head] += int(parts[1]) << 10
        found: Counter[str] = Counter()
        for row in rows:
            found["anonymous" if row["name"].startswith("anonymous") else row["name"]] += row["bytes"][at]
        assert +found == +said
