"""The files of the program are in another folder: each front end suggests the option or setting for that folder, and then finds the
names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from debuggers import findleaks, gdb, lldb
from doors import build, parse_blocks

import cores


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Return a core, the folder that now contains its program's files, and the address of a block."""
    folder = tmp_path_factory.mktemp("moved")
    program = build(folder)
    with cores.Running([str(program)], folder / "run") as running:
        at = parse_blocks(running.output)["first"]
        core = running.kernel_core()
    root = folder / "root"
    inside = root / program.relative_to("/")
    inside.parent.mkdir(parents=True)
    program.rename(inside)
    return core, root, at


def list_suggestions(printed: str) -> list[str]:
    """Return the suggested commands of the warnings, with wrapped lines joined."""
    joined = " ".join(printed.split())
    return re.findall(r"doors: not on this machine: read-only data and symbols are missing\. ([^`]*`[^`]*`|Give --sysroot)", joined)


def test_the_command_line(moved: tuple[Path, Path, str]) -> None:
    core, root, at = moved
    assert list_suggestions(findleaks("path", at, str(core))) == ["Give --sysroot"]
    assert not list_suggestions(findleaks("path", at, str(core), "--sysroot", str(root)))


def test_gdb(moved: tuple[Path, Path, str]) -> None:
    core, root, at = moved
    words = f"leaks path {at}"
    before, after = gdb([words, "echo ====\\n", f"set sysroot {root}", words], "-c", str(core)).split("====")
    assert list_suggestions(before) == ["Run `set sysroot DIR`"] and not list_suggestions(after)


def test_lldb(moved: tuple[Path, Path, str]) -> None:
    core, root, at = moved
    words = f"leaks path {at}"
    assert list_suggestions(lldb([words], "-c", str(core))) == ["Load the core again after `platform select --sysroot DIR remote-linux`"]
    command = f"platform select --sysroot {root} remote-linux"
    assert not list_suggestions(lldb([command, f"target create -c {core}", words]))
