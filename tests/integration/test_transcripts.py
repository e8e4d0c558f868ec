"""A new user finds the cause with at most three commands: `verdict`, then commands that the previous output suggests."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import mallocs_python
import pytest
import truth
from debuggers import ran
from kernel_cores import crashed

import cores


def suggested(text: str) -> list[list[str]]:
    """The commands behind `next:`, as words without the program's name."""
    lines = [line for part in text.split("next: ")[1:] for line in re.split(r"\n(?! {6,}\S*(?:python|findleaks))", part)[:1]]
    commands = [command for line in lines for row in line.splitlines() for command in row.split(" · ")]
    return [shlex.split(re.sub(r"^.*?findleaks ", "", command.strip())) for command in commands]


def follow(where: list[str], *choices: str) -> str:
    """The output of the last command. `choices`: the words of the commands after `verdict`; each was suggested before."""
    assert len(choices) <= 2, "three commands at most"
    text = ran("verdict", *where).stdout
    for choice in choices:
        found = [words for words in suggested(text) if words[0] == choice]
        assert found, f"{choice} is not suggested:\n{text}"
        text = ran(*found[0]).stdout
    return " ".join(text.split())


def compiled(folder: Path, source: str, *options: str) -> str:
    program = folder / source.partition(".")[0]
    compiler = "g++" if source.endswith("cpp") else "gcc"
    subprocess.run([compiler, "-O1", "-g", "-w", *options, str(truth.PROGRAMS / source), "-o", program], check=True)
    return str(program)


def test_overrun(tmp_path: Path) -> None:
    core, _ = crashed([compiled(tmp_path, "crashes.cpp", "-std=c++17"), "overrun"], tmp_path / "run")
    assert "written past its end" in follow([str(core)], "verify")


def test_client_that_does_not_read(tmp_path: Path) -> None:
    with cores.Running([compiled(tmp_path, "indexed_clients.c", "-std=gnu11"), "900"], tmp_path / "run") as run:
        client, replies = run.output.split()[:2]
        text = follow(["--pid", str(run.pid)], "roots")
    assert client in text
    assert f"linked list, {replies} nodes" in text


def test_threads_that_wait(tmp_path: Path) -> None:
    (tmp_path / "page.data").write_bytes(b"page" * (64 << 10))
    command = [compiled(tmp_path, "large_shares.c", "-std=gnu11", "-pthread"), "threads", "200", str(tmp_path / "page.data")]
    with cores.Running(command, tmp_path / "run") as run:
        text = follow(["--pid", str(run.pid)], "stacks")
    assert re.search(r"200 threads.*wait_for_client.*serve", text), text


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
