"""`triage` on real cores, intact and damaged: one row for each core, one group for the same leak in many cores, and only Ctrl-C ends it
early."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import commandline
import pytest
import triaged

from cores import Running

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
FILES = 18
"""The number of files in a folder of intact and damaged cores: each damaged kind, and four intact ones."""
MANY = 2000
"""The number of files, most of which are hard links. Reading all of them takes minutes."""


def run(*words: object, status: int = 0) -> str:
    done = commandline.run(["triage", *map(str, words)], os.environ)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


class Made(NamedTuple):
    cores: list[triaged.Core]
    folder: Path  # of FILES files, intact and damaged
    bad: dict[str, str]  # part of the error message of each unreadable file, by file name
    cut: set[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    base = tmp_path_factory.mktemp("triage")
    programs = [triaged.build(base / "O0", "-O0"), triaged.build(base / "O2", "-O2")]
    cores = [triaged.core(program, base / f"{program.parent.name}-{seed}", seed) for program in programs for seed in range(3)]
    assert len({min(core.truth) for core in cores}) == 6, "all runs had the same addresses"
    folder = base / "mixed"
    bad, cut = create_files(folder, [core.path for core in cores])
    return Made(cores, folder, bad, cut)


def create_files(folder: Path, cores: list[Path], count: int = FILES) -> tuple[dict[str, str], set[str]]:
    """Create this number of files: good cores, plain, compressed and truncated, and files that are not cores."""
    (folder / "below" / "deeper").mkdir(parents=True)
    whole = cores[0].read_bytes()
    bad = {
        "empty": "the file is empty",
        "program": "expected a core file, got a program",
        "text": "not an ELF file",
        "other": "AArch64",
        "pipe": "a named pipe",
        "minidump": "a minidump",
        "head": "truncated",
        "packed.gz": "not an ELF file",
        "link-to-nothing": "",
    }
    (folder / "empty").touch()
    shutil.copy(sys.executable, folder / "program")
    (folder / "text").write_text("dear diary\n")
    other = bytearray(whole[: 1 << 20])
    other[18:20] = (250).to_bytes(2, "little")
    (folder / "other").write_bytes(other)
    os.mkfifo(folder / "pipe")
    (folder / "minidump").write_bytes(b"MDMP" + bytes(1000))
    (folder / "head").write_bytes(whole[:2000])
    (folder / "packed.gz").write_bytes(gzip.compress(b"dear diary\n"))
    os.symlink("/nowhere", folder / "link-to-nothing")
    os.symlink(folder, folder / "below" / "link-up")
    del bad["link-to-nothing"]
    bad["other"] = ""  # other tests check the message of this refusal
    cut = set()
    for number, part in enumerate((0.3, 0.6, 0.9)):
        (folder / "below" / f"cut-{number}").write_bytes(whole[: int(part * len(whole))])
        cut.add(f"cut-{number}")
    (folder / "below" / "cut.gz").write_bytes(gzip.compress(whole, 1)[: len(whole) // 40])
    cut.add("cut.gz")
    shutil.copy(SAMPLE, folder / "below" / "sample.core.gz")
    left = count - sum(len(names) for _, _, names in os.walk(folder)) + 1  # the symbolic link points to no file
    for number in range(left):
        os.link(cores[number % len(cores)], folder / "below" / "deeper" / f"core.{number:04}")
    return bad, cut


def check_mixed(made: Made, rows: dict[str, dict[str, Any]], count: int = FILES) -> None:
    assert len(rows) == count
    truths = {one.path.stat().st_ino: one for one in made.cores}
    for core, row in rows.items():
        name = os.path.basename(core)
        if name in made.bad:
            assert row["status"] == "failed" and row["lost_bytes"] is None and made.bad[name] in row["error"], row
        elif name in made.cut:
            assert row["status"] == "partial" and row["error"] is None, row
            assert row["warnings"], row
        else:
            assert row["status"] == "ok" and row["signal"] == "SIGABRT", row
            one = truths.get(os.stat(core).st_ino)
            assert row["program"] == ("orders" if one is not None else "shop")
            if one is not None:
                assert {lost.way for lost in one.truth.values()} == set(triaged.WAYS)
                assert len(row["signatures"]) == len(triaged.WAYS)


def test_the_same_leak_is_one_group(made: Made) -> None:
    """A leak in two builds with different addresses, and with heaps full of stale words, has one group."""
    rows, last = triaged.parse_rows(run("--json", *(one.path for one in made.cores)))
    by_way = triaged.check_groups(rows, last, made.cores)
    assert len({row["build_id"] for row in rows.values()}) == 2
    groups = {group["signature"]: group for group in last["groups"]}
    assert set(groups) == set(by_way.values())
    for way, signature in by_way.items():
        group = groups[signature]
        leaks = [leak for row in rows.values() for leak in row["signatures"] if leak["signature"] in group["signatures"]]
        assert group["cores"] == len(made.cores) <= len(leaks), way
        assert (group["blocks"], group["bytes"]) == tuple(sum(leak[name] for leak in leaks) for name in ("blocks", "bytes"))
        times = [row["time"] for row in rows.values()]
        assert (group["first"], group["last"]) == (min(times), max(times))
        assert len(group["builds"]) == 2 and group["new"] is None
    assert "Square" in groups[by_way["objects"]]["what"] and groups[by_way["cycles"]]["what"].startswith("cycle of")
    assert groups[by_way["texts"]]["what"] == 'text "GET"' and groups[by_way["texts"]]["hint"].startswith('"GET /orders/')


@pytest.mark.matrix
def test_the_same_leak_is_one_group_in_many_runs(tmp_path: Path) -> None:
    """20 runs of each kind of leak alone, and 20 runs of all together, of three builds, have one group for each leak."""
    builds = [("O0", "g++", ["-O0"]), ("O2", "g++", ["-O2"]), ("clang", "clang++-19", ["-O2", "-fno-pie", "-no-pie"])]
    cores = []
    for name, compiler, flags in builds:
        program = triaged.build(tmp_path / name, *flags, compiler=compiler)
        for seed in range(20):
            cores.append(triaged.core(program, tmp_path / f"{name}-{seed}", seed))
            cores += [triaged.core(program, tmp_path / f"{name}-{seed}-{way}", 1000 + seed, way) for way in triaged.WAYS]
    (tmp_path / "list").write_text("".join(f"{one.path}\n" for one in cores))
    command = [sys.executable, "-m", "findleaks", "triage", "--json", f"@{tmp_path / 'list'}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=10 * commandline.PATIENCE)
    triaged.check_groups(*triaged.parse_rows(done.stdout.decode()), cores)


def test_mixed_cores_have_a_row_each(made: Made, tmp_path: Path) -> None:
    """Text, JSON and database have the same rows, also after triage was killed at any time and resumed."""
    whole, base = tmp_path / "whole.sqlite", tmp_path / "killed.sqlite"
    rows, last = triaged.parse_rows(run("--json", "-o", whole, made.folder))
    check_mixed(made, rows)
    assert (last["ok"] + last["partial"] + last["failed"], last["cores"], last["left"]) == (FILES, FILES, 0)
    assert any("2 symbolic links" in warning for warning in last["warnings"])
    kill_triage(made.folder, base, 5, FILES)
    again, last_again = triaged.parse_rows(run("--json", "--resume", "-o", base, made.folder))
    assert triaged.table(again.values()) == triaged.table(rows.values())
    assert {**last_again, "seconds": 0, "written": 0} == {**last, "seconds": 0, "written": 0}
    assert triaged.tables(base) == triaged.tables(whole)
    # All rows are in the database, so no core is read, and the text has the same figures.
    text = run("--resume", "--top", "0", "-o", base, made.folder)
    lines = text.splitlines()
    assert sum(" failed " in line for line in lines) == last["failed"]
    headline = next(line for line in lines if line.startswith(f"  {FILES} cores"))
    assert f"{last['ok']} read, {last['partial']} in part, {last['failed']} not" in headline
    assert [line.split()[0] for line in lines if any(group["signature"] in line for group in last["groups"])] == [
        str(group["cores"]) for group in last["groups"]
    ]


def kill_triage(folder: Path, base: Path, at: int, count: int) -> None:
    """Resume triage, and kill it after this number of further rows is printed, at any point of its work."""
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "--resume", "-o", base, folder]
    before = len(triaged.tables(base)["cores"]) if base.exists() else 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(before + at):
            assert process.stdout.readline()
        process.kill()
    if at:  # on a busy machine, all files may have been read before the signal
        assert before + at <= len(triaged.tables(base)["cores"]) <= count


def test_ctrl_c_prints_partial_results(made: Made, tmp_path: Path) -> None:
    # There are so many files that some are unread when the signal arrives, even if it arrives late.
    create_files(tmp_path / "many", [core.path for core in made.cores], MANY)
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "-j", "2", tmp_path / "many"]
    with open(tmp_path / "errors", "w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            output = process.stdout.read()
        errors.seek(0)
        assert process.returncode == 130 and not errors.read()
    rows, last = triaged.parse_rows(first + output)
    assert last["cores"] == len(rows) >= 1 and last["left"] == MANY - len(rows) > 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_baseline_says_what_is_new(made: Made, tmp_path: Path) -> None:
    base = tmp_path / "yesterday.db"
    run("-o", base, SAMPLE)
    _, last = triaged.parse_rows(run("--json", "--baseline", base, SAMPLE, made.cores[0].path))
    assert {group["new"] for group in last["groups"] if group["example"] == str(SAMPLE)} == {False}
    assert {group["new"] for group in last["groups"] if group["example"] != str(SAMPLE)} == {True}
    text = run("--baseline", base, SAMPLE, made.cores[0].path)
    assert sum(line.endswith(" NEW") for line in text.splitlines()) == 6


def test_exit_status(made: Made, tmp_path: Path) -> None:
    core = made.cores[0].path
    lost = sum(lost.bytes for lost in made.cores[0].truth.values())
    assert json.loads(run("--json", core).splitlines()[0])["lost_bytes"] == lost
    run("--fail-over", lost - 1, core, status=1)
    run("--fail-over", lost, core)
    run("--fail-over", lost, core, made.folder / "empty", status=2)
    run(made.folder / "empty", made.folder / "pipe", status=2)
    run(core, "/dev/null", "/no/such/core")


def test_names_from_lists(made: Made, tmp_path: Path) -> None:
    """Names are one on each line, or end with NUL, and may come from standard input. A core that is named twice has one row."""
    odd = tmp_path / "a core\nwith \udcff"
    os.link(made.cores[1].path, odd)
    names = [os.fsencode(odd), os.fsencode(made.cores[0].path), os.fsencode(made.cores[0].path)]
    (tmp_path / "list").write_bytes(b"\0".join(names))
    base = tmp_path / "odd.sqlite"
    rows, _ = triaged.parse_rows(run("--json", "-o", base, f"@{tmp_path / 'list'}"))
    assert [row["status"] for row in rows.values()] == ["ok", "ok"]
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "--resume", "-o", base, "-"]
    done = subprocess.run(command, input=b"\0".join(names), stdout=subprocess.PIPE, check=True, timeout=commandline.PATIENCE)
    again, _ = triaged.parse_rows(done.stdout.decode())
    assert [row["seconds"] for row in again.values()] == [row["seconds"] for row in rows.values()] or len(again) == 2
    with closing(sqlite3.connect(base)) as found:
        assert found.execute("SELECT count(*) FROM cores").fetchone() == (2,)


CRASH = """
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) void bad_pointer(volatile int *at) { *at = 1; }
__attribute__((noinline)) void broken_promise(void) { abort(); }
int main(int argc, char **argv) {
    free(malloc(40));
    if (argc > 1 && !strcmp(argv[1], "abort")) broken_promise();
    bad_pointer((volatile int *)16);
    return 0;
}
"""


@pytest.mark.parametrize(("word", "signal_name", "frame"), [("abort", "SIGABRT", "broken_promise"), ("fault", "SIGSEGV", "bad_pointer")])
def test_where_it_crashed(tmp_path: Path, word: str, signal_name: str, frame: str) -> None:
    (tmp_path / "crash.c").write_text(CRASH)
    subprocess.run(["gcc", "-O1", "-fno-optimize-sibling-calls", "-o", tmp_path / "crash", tmp_path / "crash.c"], check=True)
    (tmp_path / "run").mkdir()
    subprocess.run(["sh", "-c", f"ulimit -c unlimited; exec ../crash {word}"], cwd=tmp_path / "run", stdout=subprocess.DEVNULL)
    (core,) = (tmp_path / "run").glob("core*")
    rows, _ = triaged.parse_rows(run("--json", core))
    assert (rows[str(core)]["signal"], rows[str(core)]["frame"], rows[str(core)]["program"]) == (signal_name, frame, "crash")


def test_core_that_needs_too_much_memory_has_a_row(tmp_path: Path) -> None:
    """A core that needs more memory than is available gets a row with the error. The other cores are not affected."""
    program = tmp_path / "leaky"
    subprocess.run(["gcc", "-O0", "-o", program, Path(__file__).parents[1] / "programs" / "leaky.c"], check=True)
    with Running([str(program), "1500000"], tmp_path / "run") as process:
        core = process.kernel_core()
    rows, _ = triaged.parse_rows(run("--json", "--memory", "32M", core, SAMPLE))
    assert rows[str(SAMPLE)]["status"] == "ok"
    assert rows[str(core)]["status"] == "failed" and "memory" in rows[str(core)]["error"], rows[str(core)]
    rows, _ = triaged.parse_rows(run("--json", "--memory", "1G", core))
    assert rows[str(core)]["status"] == "ok" and rows[str(core)]["lost_blocks"] == 65


@pytest.mark.matrix
def test_a_thousand_cores_killed_ten_times(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "thousand"
    create_files(folder, [core.path for core in made.cores], 1000)
    big = made._replace(folder=folder)
    whole, base = tmp_path / "whole.sqlite", tmp_path / "killed.sqlite"
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "-o", whole, folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=10 * commandline.PATIENCE)
    rows, _ = triaged.parse_rows(done.stdout.decode())
    check_mixed(big, rows, 1000)
    chance = random.Random()
    for _ in range(10):
        kill_triage(folder, base, chance.randrange(80), 1000)
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "--resume", "-o", base, folder]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=10 * commandline.PATIENCE)
    assert triaged.tables(base) == triaged.tables(whole)
