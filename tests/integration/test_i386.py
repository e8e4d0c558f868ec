"""32-bit x86 programs under a 64-bit kernel: live processes and cores, in each front end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import accuracy
import pytest
import truth
from counts import DOORS, Counting, Words, check_unharmed, code, count_calls, parse_expected, parse_tables, places
from debuggers import findleaks, gdb, lldb, objects

import cores


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("i386") / "truth"
    subprocess.run(["i686-linux-gnu-gcc", *accuracy.FLAGS, "-O1", "-o", str(built), str(accuracy.SOURCE), "-pthread"], check=True)
    return built


@pytest.mark.platform("i386", "live, on the command line", "cores of gcore")
@pytest.mark.parametrize("picture", ["live", "kernel", "gcore"])
def test_state_of_each_block(program: Path, tmp_path: Path, picture: str) -> None:
    accuracy.check(program, tmp_path, 5, picture)


@pytest.mark.platform("i386", "live, in GDB", "live, in LLDB")
def test_front_ends_agree(program: Path, tmp_path: Path) -> None:
    with cores.Running([str(program), "3", "4", "1"], tmp_path) as running:
        pid = str(running.pid)
        expected = answers(findleaks("blocks", "--json", "--pid", pid))
        assert len(expected) > 2000
        assert answers(gdb(["leaks blocks --json"], "-p", pid)) == expected
        assert answers(lldb(["leaks blocks --json"], "-p", pid)) == expected


@pytest.mark.platform("i386", "`count`, in GDB and on the command line")
@pytest.mark.parametrize("front_end", [DOORS["command line"], pytest.param(DOORS["gdb"], marks=pytest.mark.matrix)], ids=["alone", "gdb"])
def test_every_call_is_counted_by_its_stack(front_end: Words, tmp_path: Path) -> None:
    built = tmp_path / "counting"
    flags = ("-O2", "-g", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["i686-linux-gnu-gcc", *flags, "-o", str(built), str(truth.PROGRAMS / "counting.c"), "-pthread"], check=True)
    with cores.Running([str(built), "1"], tmp_path / "run") as running:
        at = places(running.pid, built, ["event"])
        before = code(running.pid, at)
        counting = Counting(front_end, ["event", "--events", "78", "--json"], running, at)
        (running.folder / "go").touch()
        (table,) = parse_tables(counting.finish())
        assert count_calls(table) == parse_expected(running, 1)
        assert (table["events"], table["matched"], table["end"]) == (78, 78, "asked")
        check_unharmed(running, at, before)


def answers(output: str) -> list[tuple[str, int, str, str]]:
    lines = (json.loads(line) for line in objects(output))
    return [(line["address"], line["size"], line["state"], line["kind"]) for line in lines if "address" in line]
