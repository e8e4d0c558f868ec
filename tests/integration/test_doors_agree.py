"""GDB, LLDB and the command line print the same JSON, byte for byte, for the same core and for the same stopped process."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import building
import pytest
from counts import until
from debuggers import findleaks, gdb, lldb, objects
from doors import Placed, build, check_truth, inside, on_core, parse_blocks, questions

from cores import Running

program = building.by(build)


running = building.running("50")


@pytest.fixture(scope="module")
def gcore(running: Running) -> Path:
    return running.gcore()


@pytest.fixture(scope="module")
def kernel_core(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Placed]:
    with Running([str(program), "50"], tmp_path_factory.mktemp("kernel")) as run:
        return run.kernel_core(), parse_blocks(run.output)


@pytest.mark.platform("x86-64", "cores, in GDB", "cores, in LLDB")
def test_core_of_the_kernel(program: Path, kernel_core: tuple[Path, Placed]) -> None:
    core, at = kernel_core
    reported = on_core(at, core, "--exe", str(program))
    check_truth(reported, at)
    assert objects(gdb(inside(at), str(program), str(core))) == reported
    assert objects(lldb(inside(at), str(program), "-c", str(core))) == reported


def test_core_of_gcore(program: Path, running: Running, gcore: Path) -> None:
    at = parse_blocks(running.output)
    reported = on_core(at, gcore)
    check_truth(reported, at)
    assert objects(gdb(inside(at), str(program), str(gcore))) == reported
    assert objects(lldb(inside(at), str(program), "-c", str(gcore))) == reported


def test_core_without_its_program_given(running: Running, gcore: Path) -> None:
    at = parse_blocks(running.output)
    reported = on_core(at, gcore)
    assert objects(gdb(inside(at), "-c", str(gcore))) == reported
    assert objects(lldb(inside(at), "-c", str(gcore))) == reported


def test_program_that_was_moved(program: Path, tmp_path: Path) -> None:
    """findleaks uses a program that the user gives to the debugger in the same way as the program of `--exe`."""
    old, new = tmp_path / "old", tmp_path / "moved" / "new"
    new.parent.mkdir()
    shutil.copy(program, old)
    with Running([str(old)], tmp_path / "run") as run:
        at, core = parse_blocks(run.output), run.gcore()
    old.rename(new)
    reported = on_core(at, core, "--exe", str(new))
    assert reported != on_core(at, core)  # without the program, the names are missing
    assert objects(gdb(inside(at), str(new), str(core))) == reported
    assert objects(lldb(inside(at), str(new), "-c", str(core))) == reported


def test_front_ends_warn_about_a_truncated_core(program: Path, kernel_core: tuple[Path, Placed], tmp_path: Path) -> None:
    core, at = kernel_core
    cut = tmp_path / "core.cut"
    data = core.read_bytes()
    cut.write_bytes(data[: len(data) * 9 // 10])
    reported = on_core(at, cut, "--exe", str(program))
    assert any("truncated" in warning for warning in json.loads(reported[0])["warnings"])
    for remedy, printed in (
        ("Run `set sysroot DIR`, and repeat the command.", gdb(inside(at), str(program), str(cut))),
        ("Load the core again after `platform select --sysroot DIR remote-linux`.", lldb(inside(at), str(program), "-c", str(cut))),
    ):
        assert remedy in printed, "a missing file's warning names this debugger's own command"
        assert [line.replace(remedy, "Give --sysroot.") for line in objects(printed)] == reported


@pytest.mark.platform("x86-64", "live, in GDB", "live, in LLDB")
def test_live_process(running: Running) -> None:
    at = parse_blocks(running.output)
    pid = str(running.pid)
    reported = [line for words in questions(at) for line in objects(findleaks(*words, "--pid", pid))]
    check_truth(reported, at)
    assert objects(gdb(inside(at), "-p", pid)) == reported
    assert objects(lldb(inside(at), "-p", pid)) == reported


def test_process_continues_afterwards(running: Running) -> None:
    pid = str(running.pid)
    for output in (gdb(["leaks find"], "-p", pid), lldb(["leaks find", "detach"], "-p", pid)):
        assert "leaked: " in output
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        assert "TracerPid:\t0" in lines
        before = count_lines(running)
        os.kill(running.pid, signal.SIGUSR1)
        until(lambda before=before: count_lines(running) != before, "the process to print a line")  # type: ignore[misc]
        assert count_lines(running) == before + 1


def count_lines(running: Running) -> int:
    return (running.folder / "stdout").read_text().count("goes on\n")
