"""Findings about memory outside heaps: stacks, shared memory, mapped files. The arguments of each program select the kind of memory that it
fills."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import building
import pytest
from debuggers import run_cli
from transcripts import follow
from variants import mark_matrix_except

import cores

COUNT = 200  # number of threads or mappings
PART = 256 << 10  # bytes of each mapping; a thread uses one quarter of it


program = building.fixture("large_shares.c", "-std=gnu11", "-O1", "-pthread")
deep = building.fixture("deep_stacks.c", "-std=gnu11", "-O1", "-pthread")


def run(program: Path, folder: Path, kind: str, count: int) -> cores.Running:
    """Start the program in a folder, with a file of PART bytes there."""
    data = folder / "page.data"
    data.write_bytes(b"page" * (PART // 4))
    return cores.Running([str(program), kind, str(count), str(data)], folder / f"run{count}")


def findings(program: Path, folder: Path, kind: str) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the findings by kind, of the live process and of its core."""
    with run(program, folder, kind, COUNT) as running:
        live = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)
        core = json.loads(run_cli("verdict", "--json", str(running.gcore())).stdout)
    by_kind = [{one["finding"]: one for one in body["findings"]} for body in (live, core)]
    return by_kind[0], by_kind[1]


def test_threads(program: Path, tmp_path: Path) -> None:
    for found in findings(program, tmp_path, "threads"):
        one = found["thread-stacks"]
        assert (one["evidence"]["threads"], one["evidence"]["same_stack"]) == (COUNT + 1, COUNT)
        assert one["evidence"]["place"] in ("wait_for_client", "serve")
        assert one["bytes"] >= COUNT * PART // 4
        assert one["next"] == ["stacks"]


FRAME = 64 << 10  # bytes of the largest variable in a frame of deep_stacks.c


@pytest.mark.platform("x86-64", "whole stacks")
@pytest.mark.parametrize(
    ("kind", "words", "function", "frames"),
    [
        ("recursion", f"{COUNT} frames of parse take 13 MiB of it.", "parse", COUNT),
        ("frame", "1 frame of read_file takes 13 MiB of it.", "read_file", 1),
        ("returned", "Earlier calls used the rest, which stays resident until the thread ends.", None, None),
    ],
)
def test_the_stack_of_one_thread(kind: str, words: str, function: Optional[str], frames: Optional[int], deep: Path, tmp_path: Path) -> None:
    with cores.Running([str(deep), kind, str(COUNT)], tmp_path / "run") as running:
        bodies = [json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)]
        bodies.append(json.loads(run_cli("verdict", "--json", str(running.kernel_core())).stdout))
    for body in bodies:
        one = next(one for one in body["findings"] if one["finding"] == "deep-stack")
        assert COUNT * FRAME <= one["bytes"] <= (COUNT + 8) * (FRAME + 1024)
        assert one["cause"].endswith(words)
        facts = one["evidence"]
        assert (facts.get("function"), facts.get("frames")) == (function, frames)
        if function:
            assert COUNT * FRAME <= facts["frame_bytes"] <= facts["used"] <= one["bytes"]
        assert one["next"] == ["stacks"]


@pytest.mark.parametrize(("kind", "what"), [("memfd", "memfd mapping"), ("sysv", "System V segment")])
def test_shared_memory(kind: str, what: str, program: Path, tmp_path: Path) -> None:
    live, core = findings(program, tmp_path, kind)
    one = live["shared-memory"]
    # Stale words may refer to a few of them.
    assert COUNT - 2 <= one["evidence"].pop("unreferenced") <= COUNT
    assert one["evidence"] == {"mappings": COUNT, "kinds": {what: COUNT}, "of_leaked_blocks": 0}
    assert re.search(r"No word in live memory refers to \d+ of these mappings", one["cause"])
    assert one["next"][0] == f"count {'shmat' if kind == 'sysv' else 'mmap'}"
    assert one["bytes"] == COUNT * PART
    assert f"{COUNT} {what}s" in one["text"]
    # No byte is in two findings: memory that is not read consists of this memory only.
    assert live["unread-memory"]["bytes"] < COUNT * PART // 10
    assert core["shared-memory"]["evidence"]["kinds"] == {what: COUNT}


def test_shared_memory_of_leaked_blocks(program: Path, tmp_path: Path) -> None:
    for found in findings(program, tmp_path, "described"):
        one = found["shared-memory"]
        assert COUNT - 2 <= one["evidence"]["of_leaked_blocks"] <= COUNT
        assert f"Only leaked blocks refer to {one['evidence']['of_leaked_blocks']} of these mappings" in one["cause"]
        assert one["next"][0] == "find"


def test_private_mappings_of_a_file(program: Path, tmp_path: Path) -> None:
    for found in findings(program, tmp_path, "file"):
        one = found["mapped-file"]
        assert one["evidence"] == {"file": str(tmp_path / "page.data"), "mappings": COUNT, "private_writable": COUNT}
        assert one["bytes"] == COUNT * PART


def live_findings(program: Path, folder: Path, kind: str, count: int) -> dict[str, dict[str, Any]]:
    with run(program, folder, kind, count) as running:
        return {one["finding"]: one for one in json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)["findings"]}


def test_mapped_files_without_references(program: Path, tmp_path: Path) -> None:
    one = live_findings(program, tmp_path, "forgotten", 64)["mapped-file"]
    facts = one["evidence"]
    assert facts["file"].startswith(f"{tmp_path / 'page.data'}-")
    assert (facts["files"], facts["mappings"], facts["private_writable"], one["bytes"]) == (64, 64, 0, 64 * PART)
    assert facts["unreferenced"] >= 62  # a stale word may refer to one or two of them
    assert one["text"].endswith(f"64 mappings of 64 files in {tmp_path}.")


def test_files_that_are_mapped_and_referred_to(program: Path, tmp_path: Path) -> None:
    assert "mapped-file" not in live_findings(program, tmp_path, "indexed", 64)


def test_private_mappings_of_dev_zero_are_anonymous(program: Path, tmp_path: Path) -> None:
    with run(program, tmp_path, "zero", 64) as running:
        for where in (["--pid", str(running.pid)], [str(running.gcore())]):
            found = json.loads(run_cli("verdict", "--json", *where).stdout)
            sorts = {one["share"]: one["bytes"] for one in found["shares"]}
            assert "shared" not in sorts and 64 * PART <= sorts.get("unknown", 0) + sorts.get("leaked-mappings", 0) < 65 * PART


def test_libraries_that_are_loaded_again_and_again(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "plugin.c"
    source.write_text(f"static char state[{PART}] = {{1}}; __attribute__((constructor)) static void start(void) {{")
    with source.open("a") as file:
        file.write(f" for (volatile int at = 0; at < {PART}; at += 512) state[at] = 1; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "plugin", source], check=True)
    with cores.Running([str(program), "libraries", "48", str(tmp_path / "plugin")], tmp_path / "run") as running:
        found = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)["findings"]
    (one,) = (one for one in found if one["finding"] == "module-data")
    assert one["text"].startswith(f"In use, not leaked: variables of 48 libraries like {tmp_path / 'plugin-#.so'} take 12 MiB.")
    assert one["evidence"]["modules"] == 48 and one["next"][0] == "count dlopen"


FILES = {
    "private": ("file ", "it is mapped private and writable, and pages that were written to are copies, which only this process has"),
    "shared": ("deleted file ", "; the file keeps its space until it is unmapped"),
}


@pytest.mark.parametrize("kind", FILES)
def test_one_mapping_of_a_file(kind: str, program: Path, tmp_path: Path) -> None:
    """`verdict` prints a sentence about the mapping, but no finding."""
    with run(program, tmp_path, kind, COUNT) as running:
        found = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)
    start, end = FILES[kind]
    (note,) = [one for one in found["notes"] if "page.data" in one]
    assert note.startswith(f"{start}{tmp_path / 'page.data'} (") and note.endswith(end)


def test_a_large_variable(program: Path, tmp_path: Path) -> None:
    live, _ = findings(program, tmp_path, "variable")
    one = live["module-data"]
    assert one["evidence"]["variable"] == "frames"
    assert COUNT * PART <= one["evidence"]["variable_bytes"] <= one["bytes"] < COUNT * PART + (1 << 20)
    assert one["next"][0].startswith("whatis 0x")


def test_memory_for_code(program: Path, tmp_path: Path) -> None:
    """The first screen names the kind of mapping, and its suggested command shows what refers to the mapping."""
    with cores.Running([str(program), "code", str(COUNT), ""], tmp_path / "run") as running:
        where = ["--pid", str(running.pid)]
        assert "is executable, as memory for the code of a JIT compiler is" in follow(where)
        assert "bytes into a reachable 1,608-byte block" in follow(where, "refs")  # the table


def test_a_file_that_is_opened_again_and_again(program: Path, tmp_path: Path) -> None:
    """Numbers of descriptors are known for a live process and for a core that findleaks wrote, but not for other cores."""
    data, core = tmp_path / "page \x1b data", tmp_path / "own.core"
    data.touch()
    with cores.Running([str(program), "open", str(COUNT), str(data)], tmp_path / "run") as running:
        run_cli("snapshot", "--weight", "core", "-o", str(core), "--pid", str(running.pid), check=True)
        for where in (["--pid", str(running.pid)], [str(core)]):
            (one,) = (one for one in json.loads(run_cli("verdict", "--json", *where).stdout)["findings"] if one["finding"] == "open-files")
            facts = {"file": str(data), "descriptors": COUNT}
            assert one["evidence"] == {**facts, "files": [facts]}
            assert one["bytes"] == 0
        text = run_cli("verdict", str(core)).stdout
    assert f"{COUNT} open file descriptors refer to one file" in text
    assert "\x1b" not in text


def test_several_files_that_are_opened_again_and_again(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("first", "second", "third", "fourth", "fifth", "few")]
    counts = dict(zip(names, (150, 120, 130, 110, 100, 99)))
    opener = f"kept = [open(name, 'w') for name, count in {counts}.items() for _ in range(count)]"
    opener += "; print('ready', flush=True); __import__('time').sleep(9999)"
    with cores.Running([sys.executable, "-c", opener], tmp_path / "run") as running:
        found = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)["findings"]
    (one,) = (one for one in found if one["finding"] == "open-files")
    assert one["text"] == (
        f"610 open file descriptors refer to 5 files: 150 to {names[0]}, 130 to {names[2]}, 120 to {names[1]} and 2 more files."
    )
    assert {each["file"]: each["descriptors"] for each in one["evidence"]["files"]} == {name: counts[name] for name in names[:5]}


def test_mappings_that_nothing_refers_to(program: Path, tmp_path: Path) -> None:
    for found in findings(program, tmp_path, "leaked"):
        one = found["leaked-mappings"]
        # A stale word may refer to one or two of them.
        assert COUNT - 3 <= one["evidence"]["mappings"] <= COUNT
        assert {row["size"] for row in one["evidence"]["sizes"]} == {PART}
        assert "of the camera" in one["text"]
        assert "unread-memory" not in found and "unknown-owner" not in found


@pytest.mark.parametrize("kind", ["kept", "chain"])
def test_mappings_that_are_referred_to(kind: str, program: Path, tmp_path: Path) -> None:
    live, core = findings(program, tmp_path, kind)
    for found in (live, core):
        assert "leaked-mappings" not in found
        cause = found["unread-memory"]["cause"]
        assert re.search(r'begins with "FRAME \d+ of the camera', cause)
        # The addresses are in a block to which the variable `table` refers, or the first one is in a variable.
        holder = r"A reachable .*block.* at 0x[0-9a-f]+ refers" if kind == "kept" else r"first \(large_shares, data\) refers"
        assert re.search(rf" {holder} to these mappings\.$", cause), cause
    assert [one for one in live["unread-memory"]["next"] if one.startswith("track --mmap")]


def test_stacks_without_a_finding_are_described(program: Path, tmp_path: Path) -> None:
    """Stacks of less than 8 MiB are not a finding. A note names the function of most threads."""
    with run(program, tmp_path, "threads", 40) as running:
        found = json.loads(run_cli("verdict", "--json", "--pid", str(running.pid)).stdout)
    assert [one["finding"] for one in found["findings"]] == ["nothing-lost"]
    (note,) = [one for one in found["notes"] if one.startswith("stacks of threads")]
    assert note.endswith(": 40 of 41 have the same stack, in wait_for_client. `stacks` shows the calls")
    assert found["findings"][0]["next"] == ["stacks"]


GROWING = {
    "memfd": ("shared", "/memfd:frame"),
    "shm": ("shared", "/dev/shm/findleaks-#-frame-#"),
    "sysv": ("shared", "/SYSV00000000"),
    "file": ("files", "page.data"),
    "kept": ("unknown", "anonymous rw-, up to 256 KiB each"),
}
"""For each KIND of large_shares.c: the share that grows, and the name of the cause of its growth."""


@pytest.mark.parametrize("kind", mark_matrix_except(GROWING.keys(), "memfd", "shm", "kept"))
def test_growth_of_a_share_has_a_cause(kind: str, program: Path, tmp_path: Path) -> None:
    (share, name), snapshots = GROWING[kind], []
    for count in (60, 120):
        with run(program, tmp_path, kind, count) as running:
            snapshots.append(str(tmp_path / f"snapshot{count}"))
            assert run_cli("snapshot", "-o", snapshots[-1], "--pid", str(running.pid)).returncode == 0
    row = json.loads(run_cli("diff", "--json", *snapshots).stdout)["grown"][0]
    assert (row["what"], row["name"]) == ("share", share)
    (cause,) = row["inside"]
    assert (cause["name"], cause["counts"], cause["delta"]) == (name, [60, 120], 60 * PART)
    text = " ".join(run_cli("diff", *snapshots).stdout.split())
    assert f": 60 → 120 {'anonymous mappings of 128 KiB to 256 KiB' if kind == 'kept' else f'mappings of {name}'}" in text, text
