"""`snapshot --weight core` and `--fork`: the same state of a process as a summary, a core or a clone, compared with later states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debuggers import gdb, lldb, run_cli
from grows import LOST, NODE, build, go_on, truth

from cores import Running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("weights")
    with Running([str(build(folder))], folder) as one:
        yield one


def answer(*words: object) -> dict[str, Any]:
    return dict(json.loads(run_cli(*map(str, words), "--json", check=True).stdout))


def list_growth(found: dict[str, Any]) -> tuple[Any, Any]:
    """Return the number of nodes of the list and of lost blocks, before and after."""
    (held,) = [row for row in found["grown"] if row["what"] == "root" and row["name"].startswith("g_sessions ")]
    (lost,) = [row for row in found["grown"] if row["what"] == "lost" and row["name"] == f"{LOST} B"]
    (nodes,) = [one for one in held["inside"] if one["what"] == "container"]
    return (nodes["counts"][0], nodes["counts"][-1]), (lost["counts"][0], lost["counts"][-1])


def test_each_form_of_a_sample(running: Running) -> None:
    """The forms are a summary, a summary of a clone, a core, and a compressed core of a clone. Each has the state of its time, whatever the
    process does later. findleaks reads a core as the saved state, also while the process lives."""
    folder, pid = running.folder, running.pid
    before = truth(running)
    made = {
        "summary": answer("snapshot", "-o", folder / "a.snapshot", "--pid", pid),
        "clone": answer("snapshot", "--fork", "-o", folder / "b.snapshot", "--pid", pid),
        "core": answer("snapshot", "--weight", "core", "-o", folder / "c.core", "--pid", pid),
        "packed": answer("snapshot", "--weight", "core", "--fork", "--zstd", "-o", folder / "d.core.zst", "--pid", pid),
    }
    assert all(one["stopped_seconds"] > 0 and one["pid"] == pid for one in made.values())
    go_on(running)
    after = truth(running)
    for one in made.values():
        found = answer("diff", one["file"], "--pid", pid)
        assert list_growth(found) == ((before[0], after[0]), (before[1], after[1])), one["file"]
        assert [row["pid"] for row in found["samples"]] == [pid, pid]
        assert found["survivors"]["first"]["part"]["value"] == 1, "the program frees nothing"
    same = answer("diff", made["summary"]["file"], made["core"]["file"])
    assert {row["name"] for row in same["grown"] if row["delta"]} <= {"files", "kernel"}, (
        "file pages become resident or are evicted by the page cache"
    )
    assert all(row["resident"] for row in same["samples"]), "the note in the core has the resident pages"


def test_debuggers_read_the_core(running: Running) -> None:
    file = running.folder / "read.core"
    answer("snapshot", "--weight", "core", "-o", file, "--pid", running.pid)
    program = str(running.folder / "grows")
    nodes, _ = truth(running)
    for text in (gdb(["leaks roots g_sessions"], program, str(file)), lldb(["leaks roots g_sessions"], program, "-c", str(file))):
        assert f"{nodes:,} nodes of {NODE} B" in text


def test_a_series_of_cores(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    run_cli("snapshot", "--weight", "core", "--every", "0.1", "--count", "3", "-o", str(folder), "--pid", str(running.pid), check=True)
    assert len(list(folder.glob("grows-*.core"))) == 3
    found = answer("diff", folder)
    assert len(found["samples"]) == 3 and found["seconds"] > 0
    assert {row["trend"] for row in found["grown"]} == {"flat"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--zstd"], "--zstd compresses cores: it needs --weight core"),
        (["--count", "2"], "--count needs --every SECONDS"),
        (["--weight", "core", "-o", "/nowhere/x.core"], "/nowhere"),
        (["--weight", "core", "-o", "/dev/null"], "/dev/null"),
    ],
)
def test_refused(running: Running, words: list[str], said: str) -> None:
    done = run_cli("snapshot", *words, "--pid", str(running.pid))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize("words", [["--fork"], ["--weight", "core"]])
def test_a_core_cannot_be_cloned(running: Running, words: list[str]) -> None:
    file = running.folder / "refused.core"
    answer("snapshot", "--weight", "core", "-o", file, "--pid", running.pid)
    done = run_cli("snapshot", *words, str(file))
    assert (done.returncode, done.stderr) == (2, f"findleaks: {' '.join(words)} needs a process: --pid PID\n")
    text = gdb([f"leaks snapshot {' '.join(words)}"], str(running.folder / "grows"), str(file))
    shell = f"detach, and type in a shell: findleaks snapshot {' '.join(words)} --pid PID"
    assert f"leaks: {' '.join(words)} needs a process without a debugger: {shell}" in " ".join(text.split())
