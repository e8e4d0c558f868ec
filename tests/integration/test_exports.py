"""Files that `-o` writes contain the same figures as the JSON, in each front end. Other programs can read the files."""

from __future__ import annotations

import csv
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import building
import doors
import profilefiles
import pyarrow.parquet
import pytest
import truth
from counts import Counting, by_command_line, by_gdb, places
from debuggers import findleaks, gdb, lldb, objects, run_cli
from profilefiles import Stack, Values

from cores import Running

PARQUET = "lost.parquet"  # debuggers need not have the library of this format
FORMS = ("lost.folded", "lost.pb.gz", "lost.speedscope.json", "lost.html", "lost.csv", "lost.db")


def in_csv(value: Any) -> str:
    """Return the text as a CSV cell, with "'" before text that a spreadsheet would evaluate."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"'{value}" if str(value).startswith(("=", "+", "-", "@")) else str(value)


program = building.by(doors.build)


@pytest.fixture(scope="module")
def core(program: Path) -> Iterator[Path]:
    with Running([str(program), "40"], program.parent / "run") as running:
        yield running.gcore()


def run_json(*words: object) -> dict[str, Any]:
    (line,) = objects(run_cli(*map(str, words), "--json", check=True).stdout)
    made: dict[str, Any] = json.loads(line)
    return made


def rows(core: Path, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in objects(run_cli("blocks", *words, "--json", str(core), check=True).stdout)]


def lost(core: Path) -> dict[Stack, Values]:
    """Return the output of `find` as stacks."""
    found: dict[Stack, Values] = {}
    answer = run_json("find", core)
    for group in answer["groups"]:
        size = f"{group['size']:,} B" + (f", cycle of {group['cycle']}" if group["cycle"] > 1 else "")
        size += f", e.g. {group['hint']}" if group["hint"] else ""
        allocator = answer["allocators"][0]
        stack = (group["kind"], f"{allocator['name']} {allocator['version']}", group["type"] or "no type", size)
        found[stack] = group["blocks"], group["bytes"]
        if group["indirect_blocks"]:
            found[(*stack, "indirect")] = group["indirect_blocks"], group["indirect_bytes"]
    return found


def read_file(file: Path) -> Any:
    """Read a file with the reader of its format."""
    if file.name.endswith(".folded"):
        return profilefiles.parse_folded(file)
    if file.name.endswith(".pb.gz"):
        return profilefiles.pprof_samples(file)[1]
    if file.name.endswith(".json"):
        return profilefiles.speedscope(file)
    if file.name.endswith(".html"):
        nodes = profilefiles.flamegraph(file)[1]
        return {tuple(name for name, _ in path): values for path, values in nodes.items() if any(values)}
    if file.name.endswith(".csv"):
        with open(file, newline="", encoding="utf-8") as table:
            return list(csv.DictReader(table))
    if file.name.endswith(".parquet"):
        return [{**row, "address": hex(row["address"])} for row in pyarrow.parquet.read_table(file).to_pylist()]
    done = subprocess.run(["sqlite3", "-json", file, "SELECT * FROM blocks ORDER BY address"], capture_output=True, text=True, check=True)
    return [{**row, "address": hex(row["address"])} for row in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def written(core: Path) -> dict[str, Any]:
    """Return the files that the command line wrote, by name."""
    found = {}
    for name in (*FORMS, PARQUET):
        answer = run_json("find", "-o", core.parent / name, core)
        assert answer["written"] == {
            "file": str(core.parent / name),
            "bytes": (core.parent / name).stat().st_size,
            "format": answer["written"]["format"],
            "notes": [],
        }
        found[name] = read_file(core.parent / name)
    return found


def test_lost_blocks_are_those_of_find(core: Path, written: dict[str, Any]) -> None:
    expected = lost(core)
    assert len(expected) >= 4 and {stack[0] for stack in expected} == {"definite", "possible"}
    assert written["lost.folded"] == {stack: values[1:] for stack, values in expected.items()}
    assert written["lost.pb.gz"] == written["lost.html"] == expected
    assert written["lost.speedscope.json"] == {
        title: {stack: values[at] for stack, values in expected.items()} for at, title in enumerate(("Lost blocks", "Lost bytes"))
    }
    unknown = {"type_from": None, "type_sure": None}  # JSON lacks these keys for blocks without a type
    blocks = [{**unknown, **block} for block in rows(core, "--kind", "lost,possible")]
    assert {block["kind"] for block in blocks} == {"definite", "indirect", "possible"}
    assert written["lost.db"] == written[PARQUET] == blocks
    assert written["lost.csv"] == [{key: in_csv(value) for key, value in block.items()} for block in blocks]
    totals = run_json("find", core)["totals"]
    assert sum(values[1] for values in expected.values()) == sum(totals[kind]["bytes"] for kind in ("definite", "indirect", "possible"))


def test_front_ends_write_the_same_files(program: Path, core: Path, written: dict[str, Any]) -> None:
    for front_end, debugger, arguments in (("gdb", gdb, (str(program), str(core))), ("lldb", lldb, (str(program), "-c", str(core)))):
        folder = core.parent / front_end
        folder.mkdir()
        said = debugger([f"leaks find -o {folder / name}" for name in FORMS], *arguments)
        assert said.count("written to") == len(FORMS), said
        assert {name: read_file(folder / name) for name in FORMS} == {name: written[name] for name in FORMS}
        assert sorted(path.name for path in folder.iterdir()) == sorted(FORMS)


def test_blocks_are_summed(core: Path, tmp_path: Path) -> None:
    sums: Counter[Stack] = Counter()
    for block in rows(core):
        sums[block["kind"], block["allocator"], block["type"] or "no type", f"{block['size']:,} B"] += 1
    answers = objects(run_cli("blocks", "-o", str(tmp_path / "a.pb.gz"), "--json", str(core), check=True).stdout)
    assert json.loads(answers[-1])["written"]["file"] == str(tmp_path / "a.pb.gz")
    found = profilefiles.pprof_samples(tmp_path / "a.pb.gz")[1]
    assert {stack: values[0] for stack, values in found.items()} == sums
    assert all(values[1] == values[0] * int(stack[-1].split()[0].replace(",", "")) for stack, values in found.items())
    findleaks("blocks", "--sort", "size", "--limit", "3", "-o", str(tmp_path / "few.csv"), str(core))
    largest = [row["address"] for row in rows(core, "--sort", "size", "--limit", "3")]
    assert [row["address"] for row in read_file(tmp_path / "few.csv")] == largest
    # The file has all blocks. The terminal shows only some of them.
    said = findleaks("blocks", "--limit", "0", "-o", str(tmp_path / "all.csv"), str(core))
    assert sum(line.lstrip().startswith("0x") for line in said.splitlines()) == 50 < len(read_file(tmp_path / "all.csv"))


def test_retained_trees_add_up(core: Path, tmp_path: Path) -> None:
    answer = run_json("roots", "--limit", 0, "-o", tmp_path / "all.pb.gz", core)
    samples = profilefiles.pprof_samples(tmp_path / "all.pb.gz")[1]
    held: Counter[str] = Counter()
    for stack, values in samples.items():
        held[stack[0]] += values[1]
    expected = {root["name"]: root["retained_bytes"] for root in answer["roots"]}
    if answer["shared"]["retained_bytes"]:
        expected["retained by several roots"] = answer["shared"]["retained_bytes"]
    assert held == expected and sum(held.values()) == answer["total"]["bytes"]
    assert any(len(stack) > 2 for stack in samples)
    one = max(expected, key=lambda name: expected[name])
    alone = run_json("roots", one, "-o", tmp_path / "one.folded", core)
    assert sum(values[0] for values in profilefiles.parse_folded(tmp_path / "one.folded").values()) == alone["roots"][0]["retained_bytes"]
    leaders = run_json("roots", "--lost", "-o", tmp_path / "lost.folded", core)
    assert sum(values[0] for values in profilefiles.parse_folded(tmp_path / "lost.folded").values()) == leaders["total"]["bytes"]


def test_stacks(core: Path, tmp_path: Path) -> None:
    answer = run_json("stacks", "-o", tmp_path / "a.pb.gz", core)
    names, samples, addresses = profilefiles.pprof_samples(tmp_path / "a.pb.gz")
    assert names == ["threads/count"]
    expected = {}
    for stack in answer["stacks"]:
        frames = [frame["function"] or f"{frame['module']}+{frame['offset']:#x}" for frame in reversed(stack["frames"])]
        expected[tuple(name.partition("(")[0] for name in frames)] = (stack["count"],)
    assert samples == expected
    known = {frame["address"] for stack in answer["stacks"] for frame in stack["frames"]}
    assert set(addresses.values()) <= known


@pytest.mark.parametrize("front_end", [by_command_line, by_gdb], ids=["command line", "gdb"])
def test_counted_stacks(front_end: Any, tmp_path: Path) -> None:
    program = tmp_path / "counting"
    subprocess.run(["gcc", "-O2", "-g", "-o", program, truth.PROGRAMS / "counting.c", "-pthread"], check=True)
    with Running([str(program), "4"], tmp_path / "run") as running:
        at = places(running.pid, program, ["event"])
        counting = Counting(front_end, ["event", "--events", "40", "-o", str(tmp_path / "a.pb.gz"), "--json"], running, at)
        (running.folder / "go").touch()
        said = counting.finish()
    (table,) = [json.loads(line) for line in objects(said)]
    names, samples, _ = profilefiles.pprof_samples(tmp_path / "a.pb.gz")
    counts: Counter[Stack] = Counter()
    for stack in table["stacks"]:
        counts[tuple(frame["function"] or f"{frame['module']}+{frame['offset']:#x}" for frame in reversed(stack["frames"]))] += stack[
            "count"
        ]
    assert names == ["calls/count"] and sum(counts.values()) == table["matched"] >= 40
    assert {stack: values[0] for stack, values in samples.items()} == counts
    assert table["written"]["format"] == "pprof"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["find", "-o", "a.txt"],
            "-o a.txt: end its name in .html, .folded, .pb.gz, .speedscope.json, .heap, .csv, .sqlite or .parquet, or add --format",
        ),
        (["find", "--format", "csv"], "--format needs a file: add -o FILE"),
        (["find", "-o", "none/a.csv"], "none/a.csv: cannot be written: no such file or directory"),
        (["find", "-o", "/dev/full", "--format", "csv"], "/dev/full: cannot be written: no space left on device"),
        (["find", "-o", "/dev/full", "--format", "sqlite"], "/dev/full: cannot be written: no space left on device"),
        (["find", "-o", "/dev/full", "--format", "parquet"], "/dev/full: cannot be written: no space left on device"),
        (["find", "-o", "a.csv", "--suppressions", "/dev/null"], "this file contains blocks; omit one of the two"),
        (["find", "-o", "a.heap"], "a heap profile needs the call stacks that allocated the blocks: add --by site"),
        (["find", "--by", "site", "-o", "a.heap"], "no allocation stacks were recorded in this process"),
        (["stacks", "-o", "a.csv"], "end its name in .html, .folded, .pb.gz or .speedscope.json, or add --format"),
    ],
)
def test_refusals(core: Path, words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli(*words, str(core))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert why in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_format_may_be_named(core: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    assert f"written to {file}" in " ".join(findleaks("find", "-o", str(file), "--format", "folded", str(core)).split())
    assert profilefiles.parse_folded(file)
