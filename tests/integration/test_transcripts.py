"""A new user finds the cause with at most three commands: `verdict`, then commands that the previous output suggests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import mallocs_python
import pytest
import truth
from debuggers import run_cli
from kernel_cores import run_until_crash
from transcripts import follow

import cores


def compile_program(folder: Path, source: str, *options: str) -> str:
    program = folder / source.partition(".")[0]
    compiler = "g++" if source.endswith("cpp") else "gcc"
    subprocess.run([compiler, "-O1", "-g", "-w", *options, str(truth.PROGRAMS / source), "-o", program], check=True)
    return str(program)


def test_overrun(tmp_path: Path) -> None:
    core, _ = run_until_crash([compile_program(tmp_path, "crashes.cpp", "-std=c++17"), "overrun"], tmp_path / "run")
    assert "written past its end" in follow([str(core)], "verify")


def test_client_that_does_not_read(tmp_path: Path) -> None:
    with cores.Running([compile_program(tmp_path, "indexed_clients.c", "-std=gnu11"), "900"], tmp_path / "run") as run:
        client, replies = run.output.split()[:2]
        text = follow(["--pid", str(run.pid)], "roots")
    assert client in text
    assert f"linked list, {replies} nodes" in text


def test_requests_that_are_lost(tmp_path: Path) -> None:
    """Debug information names the leaked structs. The sessions are a list, although most blocks of their size are headers."""
    with cores.Running([compile_program(tmp_path, "lost_requests.c", "-std=gnu11"), "200", "300"], tmp_path / "run") as run:
        where = ["--pid", str(run.pid)]
        found, members = (follow(where, *choices) for choices in (("find",), ("whatis",)))
        held = " ".join(run_cli("roots", *where).stdout.split())
    assert re.search(r"definite 300 \S+ KiB 3,000 / \S+ KiB struct request \(40", found), found
    assert re.search(r"headers 0x\w+ → struct header .*body 0x\w+ → \"body of a request\"", members), members
    assert "sessions (lost_requests, data): linked list, 200 nodes of 24 B" in held, held


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program(tmp_path_factory.mktemp("shares"), "large_shares.c", "-std=gnu11", "-pthread")


@pytest.mark.parametrize(
    ("kind", "choices", "cause"),
    [
        ("threads", ("stacks",), r"200 threads.*wait_for_client.*serve"),
        ("memfd", (), r"50 MiB are shared memory: 200 memfd mappings"),
        ("sysv", (), r"50 MiB are shared memory: 200 System V segments"),
        ("file", ("whatis",), r"page\.data"),
        ("open", (), r"200 open file descriptors refer to one file, \S*page\.data"),
        ("leaked", ("whatis",), r"definite.*FRAME \d+ of the camera"),
    ],
)
def test_memory_that_is_no_heap(kind: str, choices: tuple[str, ...], cause: str, shares: str, tmp_path: Path) -> None:
    (tmp_path / "page.data").write_bytes(b"page" * (64 << 10))
    with cores.Running([shares, kind, "200", str(tmp_path / "page.data")], tmp_path / "run") as run:
        text = follow(["--pid", str(run.pid)], *choices)
    assert re.search(cause, text), text


@pytest.mark.parametrize("choices", [(), ("find",), ("whatis",)])
def test_streams_that_nobody_ends(choices: tuple[str, ...], tmp_path: Path) -> None:
    with cores.Running(["/usr/bin/python3", str(truth.PROGRAMS / "python_lost_streams.py")], tmp_path / "run") as run:
        text = follow(["--pid", str(run.pid)], *choices)
    assert "zlib inflate state" in text


def test_python_holders(tmp_path: Path) -> None:
    python = mallocs_python.get("3.11")
    command = python.command(str(truth.PROGRAMS / "python_named_holders.py"))
    with cores.Running(command, tmp_path, python.environment()) as run:
        text = follow(["--pid", str(run.pid)], "roots")
    assert re.search(r"__main__\.\w+ \(CPython variable\)", text), text


@pytest.mark.matrix
def test_jobs_of_a_task(tmp_path: Path) -> None:
    """The list is an attribute of a local variable of a task, below the event loop."""
    python = mallocs_python.get("3.11")
    with cores.Running(python.command(str(truth.PROGRAMS / "asyncio_worker.py")), tmp_path, python.environment()) as run:
        where = ["--pid", str(run.pid)]
        text = follow(where)
        assert "alone retains" in text and "local variable worker" in text and ".pending: list of 8,000" in text
        assert "__main__.Job (" in text
        assert ".pending: list of 8,000" in follow(where, "roots")
