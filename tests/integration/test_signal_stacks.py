"""Alternate signal stacks are not reported as leaks, and do not hide leaks: findleaks accepts at most one block for each thread, and only
if the process calls sigaltstack."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import mallocs_musl
import pytest
import truth
from debuggers import run_cli

import cores

SOURCE = truth.PROGRAMS / "signal_stacks.c"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread")
WITHOUT = "-DNO_STACKS"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Build the program, with and without signal stacks, for each libc."""
    folder = tmp_path_factory.mktemp("signal_stacks")

    def build(libc: str, *flags: str) -> Path:
        made = folder / "-".join([libc, *(flag.strip("-") for flag in flags)])
        if made.exists():
            return made
        if libc == "musl":
            return mallocs_musl.get("1.2.3").compile(SOURCE, made, "dynamic", *FLAGS, *flags)
        link = ["-static"] if libc == "static" else []
        subprocess.run(["gcc", *FLAGS, *flags, *link, "-o", str(made), str(SOURCE)], check=True)
        return made

    return build


def answers(program: Path, folder: Path, *arguments: str, core: bool = False) -> tuple[dict[str, list[str]], dict[int, str], dict]:
    """Return the addresses that the program printed, the kinds of all blocks in use, and the output of `find`."""
    with cores.Running([str(program), *arguments], folder) as running:
        where = [str(running.gcore())] if core else ["--pid", str(running.pid)]
        printed: dict[str, list[str]] = {"stack": [], "lost": []}
        for line in running.output.splitlines():
            if " 0x" in line:
                kind, address = line.split()
                printed[kind].append(address)
        blocks, _ = truth.ask(*where)
        kinds = {int(block["address"], 16): block["kind"] for block in blocks if block["state"] == "in-use"}
        body = json.loads(run_cli("find", "--json", *where).stdout)
        found = body["kernel"]["signal_stacks"]
        possible = body["kernel"]["possible_signal_stacks"]["blocks"]
        printed["possible"] = [note for note in body["notes"] if "may be alternate signal stacks" in note]
        assert len(printed["possible"]) == (possible > 0)
        if found["blocks"]:
            text = run_cli("whatis", printed["stack"][0], *where, check=True).stdout
            assert "looks like an alternate signal stack" in text
            assert "kept by the kernel: alternate signal stack" in run_cli("path", printed["stack"][0], *where, check=True).stdout
        rows = json.loads(run_cli("roots", "--limit", "0", "--json", *where).stdout)["roots"]
        kept = [(row["sort"], row["retained_blocks"]) for row in rows if row["name"] == "alternate signal stacks (kept by the kernel)"]
        assert kept == [("kernel", found["blocks"])] * bool(found["blocks"])
    return printed, kinds, found


def kinds_of(addresses: list[str], kinds: dict[int, str]) -> set[str]:
    return {kinds[int(address, 16)] for address in addresses}


@pytest.mark.parametrize(("libc", "threads", "core"), [("glibc", 0, True), ("glibc", 12, False), ("static", 3, False), ("musl", 3, False)])
def test_stacks_of_the_size_that_libc_recommends(build, tmp_path: Path, libc: str, threads: int, core: bool) -> None:
    printed, kinds, found = answers(build(libc), tmp_path, str(threads), "0", "fresh", core=core)
    assert len(printed["stack"]) == found["blocks"] == threads + 1
    assert kinds_of(printed["stack"], kinds) == {"reachable"}


def test_a_stack_beside_many_blocks_that_only_interior_pointers_reach(build, tmp_path: Path) -> None:
    printed, kinds, found = answers(build("glibc", "-DINSIDE=5000"), tmp_path, "0", "0", "fresh")
    assert found["blocks"] == 1
    assert kinds_of(printed["stack"], kinds) == {"reachable"}


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_a_leak_of_blocks_of_that_size_is_not_hidden(build, tmp_path: Path, libc: str) -> None:
    """There are more blocks than threads, so stacks cannot be distinguished from leaks."""
    printed, kinds, found = answers(build(libc), tmp_path, "3", "4", "fresh")
    assert kinds_of(printed["lost"], kinds) == {"definite"}
    assert found["blocks"] == 0


def test_stack_of_a_handled_signal_is_recognised(build, tmp_path: Path) -> None:
    """A signal that a thread has handled leaves a frame on its signal stack. Such a stack is recognised, for any size of the stack and with
    any leaks."""
    printed, kinds, found = answers(build("glibc"), tmp_path, "3", "5", "used")
    assert kinds_of(printed["stack"], kinds) == {"reachable"}
    assert kinds_of(printed["lost"], kinds) == {"definite"}
    assert (found["blocks"], len(printed["lost"]), printed["possible"]) == (4, 5, [])


@pytest.mark.parametrize(("lost", "most"), [(0, "4 leaked blocks (156 KiB)"), (5, "up to 4 of 9 leaked blocks (352 KiB)")])
def test_unused_stacks_of_another_size_are_leaked_with_a_warning(build, tmp_path: Path, lost: int, most: str) -> None:
    printed, kinds, found = answers(build("glibc"), tmp_path, "3", str(lost), "odd")
    assert kinds_of(printed["stack"], kinds) == {"definite"}
    assert (len(printed["stack"]), len(printed["lost"]), found["blocks"]) == (4, lost, 0)
    assert [note.partition(" may be ")[0] for note in printed["possible"]] == [most]


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_a_process_that_never_calls_sigaltstack_has_none(build, tmp_path: Path, libc: str) -> None:
    """The process loses one block of SIGSTKSZ bytes of zeros, and has one more thread than that."""
    printed, kinds, found = answers(build(libc, WITHOUT), tmp_path, "2", "1", "none")
    assert kinds_of(printed["lost"], kinds) == {"definite"}
    assert (found["blocks"], printed["stack"], printed["possible"]) == (0, [], [])
