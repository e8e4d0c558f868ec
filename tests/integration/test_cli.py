"""The command line on a core and on a live process: exact results, one line for bad input, Ctrl-C, progress, and a closed pipe."""

from __future__ import annotations

import gzip
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import building
import pytest
from counts import until
from stopwatch import Stopwatch

from cores import Running, states

FINDLEAKS = [sys.executable, "-m", "findleaks"]


leaky = building.fixture("leaky.c", "-O1", "-w", "-s")


@pytest.fixture(scope="module")
def core(leaky: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Running([str(leaky)], tmp_path_factory.mktemp("core")) as running:
        return running.gcore()


@pytest.fixture
def alive(leaky: Path, tmp_path: Path) -> Iterator[int]:
    with Running([str(leaky)], tmp_path / "alive") as running:
        yield running.pid


def findleaks(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FINDLEAKS, *map(str, words)], capture_output=True, text=True, timeout=180, check=False, **more)


def check_lost(found: dict[str, Any]) -> None:
    """Check that `find` reports the groups of blocks that leaky.c leaks."""
    groups = {(g["kind"], g["size"], g["blocks"], g["indirect_blocks"]) for g in found["groups"]}
    assert groups == {("definite", 40, 50, 0), ("definite", 104, 5, 10)}
    assert found["totals"]["definite"] == {"blocks": 55, "bytes": 50 * 40 + 5 * 104}
    assert found["totals"]["indirect"] == {"blocks": 10, "bytes": 10 * 104}
    assert found["trusted"] is True


def test_find_imports_few_modules(core: Path) -> None:
    """`find` imports neither the Python reference engine nor the DWARF reader. It needs neither, and they would take 50 ms."""
    code = "import sys; from findleaks.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code, "find", str(core)], capture_output=True, text=True, timeout=180, check=True)
    imported = ran.stderr.split()
    assert "findleaks.engine.native.engine" in imported
    assert [
        name for name in imported if name.startswith(("findleaks.engine.reference", "elftools")) or name.endswith("engine_reference")
    ] == []


def test_a_core(core: Path) -> None:
    ran = findleaks("find", "--json", core)
    assert (ran.returncode, ran.stderr) == (0, "")
    check_lost(json.loads(ran.stdout))


def test_live_process_continues(alive: int) -> None:
    check_lost(json.loads(findleaks("find", "--json", "--pid", alive).stdout))
    until(lambda: states(alive) == {"S"}, "the process to sleep on")


def test_a_compressed_core(core: Path, tmp_path: Path) -> None:
    packed = tmp_path / "core.gz"
    packed.write_bytes(gzip.compress(core.read_bytes(), 1))
    check_lost(json.loads(findleaks("find", "--json", packed).stdout))


def test_suggested_commands_work(core: Path) -> None:
    """Suggested commands start findleaks in the way in which the user started it, for example with the same interpreter."""
    called = f"{sys.executable} -m findleaks "
    lines = [line.replace("next:", "").strip() for line in findleaks("find", core).stdout.splitlines()]
    suggested = [line for line in lines if line.startswith(called)]
    assert len(suggested) == 3
    for words in suggested:
        ran = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "definite" in ran.stdout


def test_addresses_may_stand_before_or_after_the_core(core: Path) -> None:
    example = json.loads(findleaks("find", "--json", core).stdout)["groups"][0]["examples"][0]
    first = findleaks("whatis", example, core)
    assert first.stdout == findleaks("whatis", core, example).stdout
    assert "definite" in first.stdout


def test_options_may_stand_anywhere(core: Path) -> None:
    want = findleaks("whatis", "--json", "0x10", core).stdout
    assert json.loads(want)["answers"][0]["is"] == "unmapped"
    assert findleaks("whatis", "0x10", "--json", core).stdout == want
    assert findleaks("whatis", core, "--json", "0x10").stdout == want


def bad_cores(tmp: Path, core: Path) -> Iterator[tuple[str, Path]]:
    """Bad files, each with words that the message must contain: (words, file)."""
    yield "no such file", tmp / "none"
    yield "directory", tmp
    (tmp / "empty").write_bytes(b"")
    yield "empty", tmp / "empty"
    (tmp / "text").write_text("not a core file at all\n" * 100)
    yield "ELF", tmp / "text"
    shutil.copy(sys.executable, tmp / "program")
    yield "expected a core file, got a program", tmp / "program"
    other = bytearray(core.read_bytes())
    other[18:20] = (258).to_bytes(2, "little")
    (tmp / "other").write_bytes(other)
    yield "LoongArch", tmp / "other"


def test_bad_files_give_one_line(core: Path, tmp_path: Path) -> None:
    for what, file in bad_cores(tmp_path, core):
        ran = findleaks("find", file)
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert len(ran.stderr.splitlines()) == 1, ran.stderr
        assert ran.stderr.startswith("findleaks: ")
        assert what.lower() in ran.stderr.lower(), ran.stderr


@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_truncated_core_is_not_trusted(core: Path, tmp_path: Path, percent: int) -> None:
    data = core.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(data[: len(data) * percent // 100])
    ran = findleaks("find", "--json", cut)
    assert "Traceback" not in ran.stderr
    if ran.returncode == 2 and not ran.stdout:
        assert len(ran.stderr.splitlines()) == 1
        return
    found = json.loads(ran.stdout)
    assert ran.returncode == (0 if found["totals"]["in_use"]["blocks"] else 2)
    assert found["trusted"] is False
    assert any("truncated" in warning for warning in found["warnings"])
    assert "NOT TRUSTED" in findleaks("find", cut).stdout or not found["allocators"]


@pytest.mark.parametrize(
    "words",
    [
        ["find"],
        ["find", "--pid", "4194305"],
        ["find", "--pid", "0"],
        ["find", "--pid", "-5"],
        ["find", "--pid", str(os.getpid()), "core"],
        ["find", "one", "two"],
        ["whatis", "core"],
        ["path", "0x10", "0x20", "core"],
        ["nothing"],
        ["find", "--nothing", "core"],
        ["find", "--suppressions", "/none", "core"],
    ],
)
def test_bad_arguments_give_one_line(words: list[str]) -> None:
    ran = findleaks(*words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1, ran.stderr


def test_process_of_another_user(alive: int) -> None:
    if os.geteuid() != 0:
        pytest.fail("this test becomes another user and needs root")
    # Import before the switch to the other user, who may not be allowed to read the folder of findleaks.
    code = (
        "import locale, os, sys; from findleaks import cli, commands, debugger_session, progress; from findleaks.target import copied;"
        "[commands.load(word) for word in commands.CATALOGUE]; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        f"sys.exit(cli.main(['find', '--pid', '{alive}']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert "permi" in ran.stderr.lower(), ran.stderr
    assert Path(f"/proc/{alive}/stat").read_text().split()[2] == "S"


def test_a_closed_pipe_is_no_error(core: Path) -> None:
    ran = subprocess.run(
        f"{sys.executable} -m findleaks blocks --limit 0 {core} | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert len(ran.stdout.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["find"], ["blocks", "--limit", "0", "--json"], ["find", "--help"]])
def test_full_disk_gives_one_line(core: Path, words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*FINDLEAKS, *words, core],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (ran.returncode, ran.stderr) == (2, "findleaks: cannot write the output: no space left on device\n")


@pytest.mark.alone
def test_ctrl_c_and_progress_on_a_terminal(leaky: Path, tmp_path: Path) -> None:
    """After one second, a long run prints its progress. Ctrl-C ends it within 0.3 s, and the process continues."""
    with Running([str(leaky), "3000000"], tmp_path / "big") as running:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(FINDLEAKS_PURE="1", TERM="xterm")
            os.execv(sys.executable, [*FINDLEAKS, "find", "--pid", str(running.pid)])
        seen = b""
        deadline = time.monotonic() + 120
        while b"findleaks: " not in seen and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 4096)
        assert b"findleaks: " in seen
        pressed = Stopwatch(pid)
        os.kill(pid, signal.SIGINT)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the process stays a zombie, so that its CPU time can be read
        took = pressed.seconds()
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) == 130
        assert took < 0.3
        until(lambda: states(running.pid) == {"S"}, "the process to sleep on")
