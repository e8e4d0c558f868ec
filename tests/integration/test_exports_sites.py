"""Profiles of blocks by allocation stack: jeprof and `go tool pprof` print the same output for files of findleaks as for files of
jemalloc."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path

import mallocs_jemalloc
import profilefiles
import pytest
import recorded
from debuggers import run_cli

PATIENCE = 180


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded.compile_(tmp_path_factory.mktemp("exports") / "sites")


def take(program: Path, folder: Path, sampling: int) -> recorded.Picture:
    library = str(mallocs_jemalloc.get("5.3.0").library)
    conf = f"prof:true,lg_prof_sample:{sampling}"
    return recorded.take(program, folder, 3, 100 if not sampling else 400, LD_PRELOAD=library, MALLOC_CONF=conf)


@pytest.fixture(scope="module")
def every(program: Path, tmp_path_factory: pytest.TempPathFactory) -> recorded.Picture:
    return take(program, tmp_path_factory.mktemp("every"), 0)


def top(program: Path, file: Path) -> list[str]:
    """Return the output of jeprof for a profile, as bytes."""
    words = ["jeprof", "--text", "--show_bytes", str(program), str(file)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.splitlines()


def parse_list(lines: list[str]) -> dict[str, tuple[int, int]]:
    """Return by function its own bytes, and the bytes including its callees."""
    found = {}
    for line in lines[1:]:
        own, _, _, cumulative, _, name = line.split(None, 5)
        found[name] = int(own), int(cumulative)
    return found


def test_jeprof_and_pprof_print_the_same(program: Path, every: recorded.Picture, tmp_path: Path) -> None:
    ours = tmp_path / "ours.heap"
    run_cli("blocks", "-o", str(ours), str(every.core), check=True)
    own = top(program, every.folder / "account")
    assert top(program, ours) == own and len(own) > 10
    theirs = {stack: figures[:2] for stack, figures in recorded.heap_text((every.folder / "account").read_text()).items() if figures[0]}
    found = {stack: figures[:2] for stack, figures in recorded.heap_text(ours.read_text()).items()}
    inner = Counter[tuple[recorded.Stack, int]]()
    for stack, (blocks, size) in theirs.items():
        inner[stack, blocks] += size
    assert Counter({(stack, blocks): size for stack, (blocks, size) in found.items()}) == inner
    # The pprof format has names of functions: the sums by function are the same.
    run_cli("blocks", "-o", str(tmp_path / "ours.pb.gz"), str(every.core), check=True)
    names, samples, _ = profilefiles.pprof_samples(tmp_path / "ours.pb.gz")
    assert names == ["blocks/count", "bytes/bytes"]
    assert sum(values[1] for stack, values in samples.items() if stack != ("stack not recorded",)) == sum(
        size for _, size in theirs.values()
    )
    functions = {made.functions[0] for made in every.made}
    sums = dict.fromkeys(functions, (0, 0))
    for stack, (_, size) in samples.items():
        for name in functions & set(stack):
            sums[name] = sums[name][0] + size * (stack[-1] == name), sums[name][1] + size
    printed = parse_list(own)
    assert {name: values[1] for name, values in sums.items()} == {name: printed[name][1] for name in functions}


def test_lost_blocks_by_stack(every: recorded.Picture, tmp_path: Path) -> None:
    expected: Counter[str] = Counter()
    for made in every.made:
        if made.kind == "lost":
            expected[made.functions[0]] += made.size
    for name in ("lost.pb.gz", "lost.folded", "lost.html"):
        run_cli("find", "--by", "site", "--kind", "definite", "-o", str(tmp_path / name), str(every.core), check=True)
    _, samples, addresses = profilefiles.pprof_samples(tmp_path / "lost.pb.gz")
    found: Counter[str] = Counter()
    for stack, (_, size) in samples.items():
        found[stack[-1]] += size
    assert {name: found[name] for name in expected} == expected
    assert profilefiles.parse_folded(tmp_path / "lost.folded") == {stack: values[1:] for stack, values in samples.items()}
    nodes = profilefiles.flamegraph(tmp_path / "lost.html")[1]
    assert {tuple(name for name, _ in path): values for path, values in nodes.items() if any(values)} == samples
    assert any(int(address, 16) for address in addresses.values())


def test_blocks_name_their_sites(every: recorded.Picture, tmp_path: Path) -> None:
    run_cli("blocks", "-o", str(tmp_path / "a.db"), str(every.core), check=True)
    sql = "SELECT blocks.address, function FROM blocks JOIN sites USING (site)"
    sql += " WHERE module NOT LIKE 'libjemalloc%' ORDER BY blocks.address, frame"
    done = subprocess.run(["sqlite3", "-separator", " ", tmp_path / "a.db", sql], capture_output=True, text=True, check=True)
    stacks: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        address, _, name = line.partition(" ")
        stacks.setdefault(int(address), []).append(name)
    wrong = [made for made in every.made if tuple(stacks.get(made.address, ())[: len(made.functions)]) != made.functions]
    assert wrong == [] and len(every.made) > 100


def test_sites_in_a_database_are_those_of_its_blocks(every: recorded.Picture, tmp_path: Path) -> None:
    """The database has stacks with files and lines, like `find --by site`."""
    file = tmp_path / "a.db"
    answer = every.ask("find", "--by", "site", "-o", str(file))
    with contextlib.closing(sqlite3.connect(file)) as base:
        rows = base.execute("SELECT site, address, function, offset, module, file, line FROM sites ORDER BY site, frame").fetchall()
        assert {row[0] for row in rows} == {row[0] for row in base.execute("SELECT DISTINCT site FROM blocks WHERE site")}
    keys = ("function", "offset", "module", "file", "line")
    for group in answer["groups"]:
        if group["site"]:
            number, frames = group["site"]["number"], group["site"]["frames"]
            assert [row[1:] for row in rows if row[0] == number] == [(int(f["address"], 16), *map(f.get, keys)) for f in frames]
    assert any(row[5] and row[6] for row in rows)


def test_samples_are_scaled_once(program: Path, tmp_path: Path) -> None:
    """The file of findleaks has estimates. The file of jemalloc has samples, and jeprof scales the samples. Both files give the same
    estimates."""
    picture = take(program, tmp_path / "run", 12)
    ours = tmp_path / "ours.heap"
    answer = run_cli("blocks", "-o", str(ours), "--json", str(picture.core), check=True).stdout
    assert "estimates: the recorder takes one sample every 4.0 KiB on average" in answer
    own, found = parse_list(top(program, picture.folder / "account")), parse_list(top(program, ours))
    large = {name for name, (_, size) in own.items() if size > 20_000}
    assert len(large) > 3
    for name in large:
        assert found[name][1] == pytest.approx(own[name][1], rel=0.02)
    assert re.match(r"heap profile: .* @ heapprofile", ours.read_text())
