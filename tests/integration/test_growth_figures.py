"""Figures of `diff`: a snapshot stores the results of the commands. Figures add up to the counts of the commands and to /proc/PID/smaps.
Each row of `diff` is the difference of two figures."""

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
from debuggers import run_cli
from growing import Rounds
from variants import mark_matrix_except

from findleaks import commands
from findleaks.answers.snapshots import take_snapshot
from findleaks.commands.diff import SECTIONS, compare, diff
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import load, save
from findleaks.session import Session
from findleaks.target.core import open_core
from findleaks.target.program import program_name

ALL = ["--limit", "0"]
OPTIONS = {"verdict": [], "find": ALL, "caches": ALL, "runtime": ALL, "roots": ["--depth", "3"], "scopes": [], "stacks": []}
"""The commands whose results a snapshot stores, and the functions that compute them."""
PARTS = (
    ("share", "verdict", "shares", None, "bytes"),
    ("cache", "caches", "caches", "in_use", "in_use_bytes"),
    ("root", "roots", "roots", "retained_blocks", "retained_bytes"),
    ("objects", "roots", "roots/objects", "count", "bytes"),
    ("heap", "runtime", "runtimes/parts", None, "bytes"),
    ("runtime type", "runtime", "runtimes/types", "objects", "bytes"),
    ("native", "runtime", "runtimes/types", "native_blocks", "native_bytes"),
    ("handles", "scopes", "isolates", "handles", "bytes"),
    ("handle value", "scopes", "isolates/values", "handles", None),
    ("threads", "stacks", "stacks", "count", None),
)
"""Section of figures, command, path of the parts in its JSON, and the keys of their numbers and bytes."""

Key = tuple[str, str, str]
"""Section, whole and name."""
Amount = tuple[Optional[int], Optional[int]]
"""Number and bytes. A value is None if the command does not report it."""


def run_json(session: Session, word: str) -> Any:
    """Return the command's JSON: one object, or a list of objects."""
    out = io.StringIO()
    commands.execute(lambda: session, [word, "--json", *OPTIONS.get(word, ())], out)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    return found if word == "blocks" else found[0]


def parts(answer: Any, path: str) -> Iterator[Any]:
    """Return the objects at a path of lists and objects, or no objects if the path does not exist."""
    first, _, rest = path.partition("/")
    below = answer.get(first) or []
    for one in below if isinstance(below, list) else [below]:
        yield from parts(one, rest) if rest else [one]


def amounts(sample: Snapshot) -> dict[Key, Amount]:
    found = {(one.section, one.within, one.name): (one.number, one.bytes) for one in sample.figures}
    assert len(found) == len(sample.figures)
    return found


def measure_snapshot(core: Path) -> Snapshot:
    """Take a snapshot of a core. Check that it stores the results of the commands, and that its figures add up to them."""
    with closing(Session(open_core(str(core)))) as session:
        sample = take_snapshot(session, core.stem)
        for word in OPTIONS:
            assert {**run_json(session, word), "next": []} == {**json.loads(json.dumps(sample.answers[word])), "next": []}, word
        managed = set(session.object_types.names) if session.object_types is not None else set()  # rows of the section of the runtime
        typed = [one for one in run_json(session, "blocks") if one.get("type") not in (None, *managed)]
    sums: Counter[tuple[str, int]] = Counter()
    for (section, *_), amount in amounts(sample).items():
        sums.update({(section, at): value or 0 for at, value in enumerate(amount)})
    for section, word, path, *names in PARTS:
        for at, name in enumerate(names):
            rows = [*parts(sample.answers[word], path), *([sample.answers["roots"]["shared"]] if section == "root" else ())]
            assert name is None or sums[section, at] == sum(row[name] for row in rows), (section, name)
    assert sums["share", 1] == sums["total", 1]
    totals = sample.answers["find"]["totals"]
    for at, unit in enumerate(("blocks", "bytes")):
        assert sums["kind", at] == sum(amount[unit] for amount in totals.values())
        assert sums["lost", at] + sums["garbage", at] == sum(totals[kind][unit] for kind in ("definite", "possible", "indirect"))
    for name in ("in_use", "cached", "free", "spare"):
        held = sum(
            amount[1] or 0 for key, amount in amounts(sample).items() if key[0] == "allocator" and key[2].endswith(name.replace("_", " "))
        )
        assert held == sum(total[name] or 0 for total in sample.answers["caches"]["totals"])
    # Types that come from the first word of a block, and not from its contents or debug information.
    typed = [one for one in typed if not re.fullmatch(r"FILE|std::string|.*\[\d+\]", one["type"])]
    typed = [one for one in typed if one.get("type_from") not in ("debug-info", "inferred")]
    assert (sums["type", 0], sums["type", 1]) == (len(typed), sum(one["size"] for one in typed))
    return sample


def at(key: Key, amount: int, figures: Mapping[Key, Amount]) -> Optional[int]:
    """Return the number (index 0) or bytes (index 1) of a figure in a sample: 0 if the sample lacks the figure, unknown if it is a field
    that may be unlisted."""
    if key in figures:
        return figures[key][amount]
    return None if key[0] in ("field", "container") and ("root", "", key[1]) in figures else 0


def run_diff(samples: list[Snapshot], *words: str) -> Any:
    """Return the JSON of `diff` for these samples."""
    args = commands.parse(commands.parser(diff, "findleaks"), ["--json", "--limit", "0", *words])
    assert args is not None
    (body,) = compare(samples, args).json()
    return json.loads(json.dumps(body))


def check(first: Path, last: Path, folder: Path) -> Mapping[Key, Any]:
    """Check every row of `diff` in every section, for a sample loaded from a file and for a core. Return all rows by section, whole and
    name."""
    path = folder / "first.snapshot"
    save(measure_snapshot(first), path, "test")
    samples = [load(str(path)), measure_snapshot(last)]
    before, after = map(amounts, samples)
    rows = {by: run_diff(samples, "--by", by)["grown"] for by in SECTIONS}
    kernel = [sum(amount[1] or 0 for key, amount in one.items() if key == ("share", "", "kernel")) for one in (before, after)]
    total = run_diff(samples)
    assert total["total"]["bytes"] == [sum(row["bytes"][n] for row in rows["mapping"]) + kernel[n] for n in (0, 1)]
    assert [one["resident"] for one in total["samples"]] == total["total"]["bytes"]
    figures: dict[Key, Any] = {}
    for row in [total["total"], *(row for listed in rows.values() for row in listed)]:
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
    # The kinds of mappings only explain the growth of a part.
    assert {key for key in (*before, *after) if key[0] != "kind of mapping"} <= {*figures}
    # The rows that explain the growth have the same figures, except for the rest of a divided row.
    for row in total["grown"]:
        inside = [part for part in row["inside"] if part["what"] != "kind of mapping"]
        for one in [*([] if row["note"] == "rest" or row["name"] == "other groups" else [row]), *inside]:
            same = figures[one["what"], one["within"] or "", one["name"]]
            # The row of a variable, and that of its part, includes its objects in the heap of the runtime.
            objects = [] if one["what"] == "objects" else [part["bytes"] for part in row["inside"] if part["what"] == "objects"]
            sizes = same["bytes"] and [size + sum(more) for size, *more in zip(same["bytes"], *objects)]
            assert (one["counts"], one["bytes"]) == (same["counts"], sizes)
            first_value, last_value = sizes or same["counts"]
            assert (one["before"], one["after"], one["delta"]) == (first_value, last_value, last_value - first_value)
    return figures


def write_core(one: Any, path: Path) -> Path:
    """Write a core with findleaks, which records the resident pages."""
    run_cli("snapshot", "--weight", "core", "-o", str(path), "--pid", str(one.pid), check=True)
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


PROGRAMS: dict[str, tuple[Callable[[Path], Rounds], tuple[int, int], set[str]]] = {
    "maps": (built("growth_map.cpp"), (500, 3000), {"field", "container"}),
    "lost": (built("growth_kinds.cpp"), (300, 200), {"lost", "type"}),
    "python": (python, (500, 3000), {"counter", "heap", "runtime type", "field", "container"}),
    "ruby": (ruby, (500, 3000), {"counter", "heap", "runtime type", "native", "objects"}),
    "node 0.10": (node("0.10.21", "growth_closing.js"), (1000, 3000), {"handles", "handle value"}),
    "node 22": (node("22.12.0", "growth_buffers.js"), (50, 90), {"handles", "counter", "heap", "runtime type", "native"}),
    "jvm": (jvm, (1, 8), {"counter", "heap"}),
}


@pytest.mark.parametrize("name", mark_matrix_except(PROGRAMS.keys(), "lost", "python"))
def test_every_figure(tmp_path: Path, name: str) -> None:
    program, rounds, sections = PROGRAMS[name]
    cores, printed = [], []
    with program(tmp_path) as one:
        for number in rounds:
            printed.append(one.round(number))
            cores.append(write_core(one, tmp_path / f"{number}.core"))
    figures = check(cores[0], cores[1], tmp_path)
    assert HAS_ALL | sections <= {key[0] for key in figures}
    # The counts that the program prints.
    for before, after in zip(*printed) if "container" in sections and "counter" not in sections else ():
        variable, _, first = before.split()
        (row,) = [row for key, row in figures.items() if key[0] == "container" and re.search(rf"\b{variable}$", key[2].partition(" (")[0])]
        assert row["counts"] == [int(first), int(after.split()[-1])]


@pytest.mark.matrix
def test_every_figure_of_a_server(tmp_path: Path) -> None:
    cores = []
    with real.Idle(real.PROGRAMS["redis"], tmp_path / "run") as one:
        for at in range(2):
            keys = "".join(f"SET key{at}:{key} {'v' * 100}\r\n" for key in range(2000)).encode()
            assert real.talk(one.port, keys + b"QUIT\r\n")
            cores.append(write_core(one, tmp_path / f"{at}.core"))
        run_cli("snapshot", "-o", str(tmp_path / "live.snapshot"), "--pid", str(one.pid), check=True)
    # Debian's file is redis-check-rdb. It contains several programs and chooses one by its name.
    assert load(str(tmp_path / "live.snapshot")).identity.program == "redis-server"
    with closing(open_core(str(cores[0]))) as core:
        assert program_name(core) == "redis-server"
    figures = check(cores[0], cores[1], tmp_path)
    grown = [row for key, row in figures.items() if key[0] == "kind" and key[2] == "in_use"]
    assert grown[0]["delta"] > 2000 * 100


def test_two_of_one_allocator_are_named_apart(tmp_path: Path) -> None:
    """dlmopen(3) loads a second glibc. `diff` and the commands that list allocators give the two different names."""
    cores = []
    with built("growth_namespace.c")(tmp_path) as one:
        for number in (400, 1200):
            one.round(number)
            cores.append(write_core(one, tmp_path / f"{number}.core"))
    figures = check(cores[0], cores[1], tmp_path)
    counts = {key[1:]: row["counts"] for key, row in figures.items() if key[0] == "cache"}
    # The loader decides which library has the lower address. This library is listed first.
    both = {name: {size: counts.get((name, size), [0, 0]) for size in ("40", "104")} for name in ("glibc", "glibc (second)")}
    assert sorted(max(held, key=lambda size: held[size][1]) for held in both.values()) == ["104", "40"]
    assert all(max(held.values())[1] >= 1_600 for held in both.values())
    for word in ("find", "caches", "verdict", "map", "verify"):
        assert re.search(r"glibc [\d.]+ \(second\)", " ".join(run_cli(word, str(cores[1])).stdout.split())), word


def resident(smaps: str) -> Counter[str]:
    """Return the resident bytes of each file, from the text of /proc/PID/smaps."""
    found: Counter[str] = Counter()
    head = ""
    for line in smaps.splitlines():
        parts = line.split(maxsplit=5)
        if "-" in parts[0] and not parts[0].endswith(":"):
            head = parts[5] if len(parts) > 5 else "anonymous"
        elif parts[0] == "Rss:" and not head.startswith(("[vdso", "[vvar", "[vsyscall")):
            found[head] += int(parts[1]) << 10
    return found


def test_mappings_are_those_of_smaps(tmp_path: Path) -> None:
    """Between the two reads of smaps, Linux may evict pages of files, and the snapshot may make pages resident again."""
    smaps: list[list[Counter[str]]] = []
    with built("growth_map.cpp")(tmp_path) as one:
        for name, count in (("first", 500), ("last", 9000)):
            one.round(count)
            before = resident(Path(f"/proc/{one.pid}/smaps").read_text())
            one.snapshot(name)
            smaps.append([before, resident(Path(f"/proc/{one.pid}/smaps").read_text())])
    words = [str(tmp_path / "run" / f"{name}.snapshot") for name in ("first", "last")]
    rows = json.loads(run_cli("diff", "--json", "--limit", "0", "--by", "mapping", *words, check=True).stdout)["grown"]
    for at, (before, after) in enumerate(smaps):
        found: Counter[str] = Counter()
        for row in rows:
            found["anonymous" if row["name"].startswith("anonymous") else row["name"]] += row["bytes"][at]
        least, most = before & after, before | after
        assert all(least[name] <= found[name] <= most[name] for name in {*most, *found}), (least, found, most)
