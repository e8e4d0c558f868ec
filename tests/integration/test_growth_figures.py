"""Every figure of `diff` is the difference of what the commands, run by themselves, say of each of two cores."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rubies
import truth
from debuggers import ran
from growing import Rounds

Amounts = Counter[tuple[str, str, str]]
"""By section, whole and name."""


def cpp(folder: Path) -> Rounds:
    made = folder / "growth"
    subprocess.run(["g++", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", made, truth.PROGRAMS / "growth_map.cpp"], check=True)
    return Rounds([str(made)], folder / "run")


def python(folder: Path) -> Rounds:
    return Rounds([sys.executable, str(truth.PROGRAMS / "growth_held.py")], folder / "run")


def ruby(folder: Path) -> Rounds:
    one = rubies.get(rubies.SYSTEM)
    return Rounds([*one.words, str(truth.PROGRAMS / "growth_held.rb")], folder / "run", one.environment)


def asked(core: Path, word: str, *options: str) -> Any:
    return json.loads(ran(word, "--json", *options, str(core)).stdout)  # `runtime` has status 2 where there is none


def instance(row: Any) -> str:
    """An allocator that is there more than once, by its number."""
    return f"{row['allocator']} {row['instance'] + 1}" if row["instance"] else str(row["allocator"])


def plain(name: str) -> str:
    """A root's name without counts and addresses."""
    return re.sub(r"(?<!\+)0x[0-9a-f]{5,16}", "…", re.sub(r" ?\([\d.,]+ [^()]*\)", "", name)).strip()


def expected(core: Path) -> Iterator[tuple[tuple[str, str, str], int | None, int | None]]:
    """Section, whole and name, count and bytes of each figure, from the commands' own answers."""
    verdict = asked(core, "verdict")
    for share in verdict["shares"]:
        name = f"{share['of']}: {share['share']}" if share["of"] else share["share"]
        yield ("share", "", name), share.get("count"), share["bytes"]
    found = asked(core, "find", "--limit", "0")
    for kind, amount in found["totals"].items():
        yield ("kind", "", kind), amount["blocks"], amount["bytes"]
    caches = asked(core, "caches", "--limit", "0")
    for total in caches["totals"]:
        for state in ("in_use", "cached", "free", "spare"):
            yield ("allocator", "", f"{instance(total)}: {state.replace('_', ' ')}"), total["blocks"].get(state), total[state]
    for cache in caches["caches"]:
        yield ("cache", instance(cache), cache["name"]), cache["in_use"], cache["in_use_bytes"]
    roots = asked(core, "roots")
    for root in roots["roots"]:
        yield ("root", "", plain(root["name"])), root["retained_blocks"], root["retained_bytes"]
    yield ("root", "", "several roots"), roots["shared"]["retained_blocks"], roots["shared"]["retained_bytes"]
    for runtime in asked(core, "runtime", "--limit", "0")["runtimes"]:
        for name, value in runtime["counters"].items():
            if isinstance(value, int):
                yield ("counter", runtime["name"], name), value, None
        for part in runtime["parts"]:
            yield ("heap", runtime["name"], part["name"]), None, part["bytes"]
        for one in runtime["types"]:
            yield ("runtime type", runtime["name"], one["name"]), one["objects"], one["bytes"]
            if one["native_bytes"]:
                yield ("native", runtime["name"], one["name"]), one["native_blocks"], one["native_bytes"]
    for stack in asked(core, "stacks")["stacks"]:
        yield ("threads", "", " ← ".join(frame["function"] or frame["module"] or "?" for frame in stack["frames"])), stack["count"], None


def sums(core: Path) -> tuple[Amounts, Amounts]:
    """Counts and bytes; figures of one name are added."""
    counts: Amounts = Counter()
    sizes: Amounts = Counter()
    for key, count, size in expected(core):
        counts[key] += count or 0
        sizes[key] += size or 0
    return counts, sizes


SECTIONS = ("share", "kind", "cache", "root", "lost", "runtime", "handles", "threads", "mapping")
NOT_HERE = ("field", "container", "lost", "mapping")
"""Compared below, each in its own way."""


@pytest.mark.parametrize("program", [cpp, python, ruby])
def test_every_figure(tmp_path: Path, program: Callable[[Path], Rounds]) -> None:
    with program(tmp_path) as one:
        one.round(500)
        first = one.core("first", 0)
        one.round(3000)
        last = one.core("last", 1)
    kept = [core.with_suffix(".snapshot") for core in (first, last)]
    for core, path in zip((first, last), kept):
        ran("snapshot", "-o", str(path), str(core), check=True)
    words = ["diff", "--json", "--limit", "0", *map(str, kept)]
    rows = [row for by in SECTIONS for row in json.loads(ran(*words, "--by", by, check=True).stdout)["grown"]]
    keys = [(row["what"], row["within"] or "", row["name"]) for row in rows]
    assert len(set(keys)) == len(keys)
    (counts, sizes), (counts_after, sizes_after) = sums(first), sums(last)
    assert {key for key in keys if key[0] not in NOT_HERE} == {*counts, *sizes, *counts_after, *sizes_after}
    for key, row in zip(keys, rows):
        if key[0] not in NOT_HERE:
            if row["counts"] is not None:
                assert row["counts"] == [counts[key], counts_after[key]], key
            if row["unit"] == "bytes":
                assert row["bytes"] == [sizes[key], sizes_after[key]], key
                assert row["delta"] == sizes_after[key] - sizes[key], key
    fields(rows, first, last)
    lost(rows, first, last)
    # The rows that explain the growth are made of the same figures, but for the rest of what is divided.
    figures = dict(zip(keys, rows))
    for row in json.loads(ran(*words, check=True).stdout)["grown"]:
        if row["note"] != "rest" and row["name"] != "other groups":
            same = figures[row["what"], row["within"] or "", row["name"]]
            assert {name: row[name] for name in ("before", "after", "delta", "counts", "bytes")} == {
                name: same[name] for name in ("before", "after", "delta", "counts", "bytes")
            }


def fields(rows: list[dict[str, Any]], *cores: Path) -> None:
    """A field's figures are those of a node of the tree that `roots` prints, or unknown; what is there is the whole tree's."""

    def nodes(node: dict[str, Any]) -> Iterator[tuple[int, int]]:
        for child in node["children"]:
            yield child["retained_blocks"], child["retained_bytes"]
            yield from nodes(child)

    for at, core in enumerate(cores):
        answer = asked(core, "roots", "--depth", "3")
        tree = {plain(root["name"]): set(nodes(root)) for root in answer["roots"]}
        tree["several roots"] = set(nodes(answer["shared"]))
        for row in rows:
            if row["what"] == "field" and row["bytes"][at]:
                assert (row["counts"][at], row["bytes"][at]) in tree[row["within"]], row


def lost(rows: list[dict[str, Any]], *cores: Path) -> None:
    for at, core in enumerate(cores):
        totals = asked(core, "find", "--limit", "0")["totals"]
        for kind in ("definite", "possible"):
            found = sum(row["bytes"][at] for row in rows if row["what"] == "lost" and row["within"] == kind)
            indirect = totals["indirect"]["bytes"]
            assert totals[kind]["bytes"] <= found <= totals[kind]["bytes"] + indirect


def test_mappings_are_those_of_smaps(tmp_path: Path) -> None:
    with cpp(tmp_path) as one:
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
