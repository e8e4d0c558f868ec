"""Bindings of properties (GBinding) are in use as long as the objects that they connect. A GSequence is a container."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import building
import debian
import glibs
import pytest
from debuggers import run_json

import cores

KEPT, LOST, REMOVED = 40, 30, 20


def check(launcher: list[str], folder: Path, environment: Optional[Mapping[str, str]]) -> None:
    """Nothing refers to a binding. The bindings of items in use are not leaked, and those of leaked items need no g_object_unref. Removed
    bindings need one."""
    command = ["pkg-config", "--cflags", "--libs", "gobject-2.0"]
    flags = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    program = building.compile_program(folder, "gobject_bindings.c", "-O1", *flags)
    with cores.Running([*launcher, str(program)], folder / "run", environment) as made:
        where = "--pid", str(made.pid)
        types = {row["name"]: row["objects"] for one in run_json("runtime", *where)["runtimes"] for row in one["types"]}
        answer = run_json("find", *where)
        (row, *_) = run_json("roots", "sequence", *where)["roots"]
        (several, *_) = run_json("roots", "sequences", *where)["roots"]
    assert (types["GBinding"], types["Item"]) == (KEPT + LOST + REMOVED, KEPT + LOST + 1)
    definite = [group for group in answer["groups"] if group["kind"] == "definite"]
    leaked = {group["type"]: group["blocks"] for group in definite}
    # Stale words in blocks may refer to a few of the items.
    assert leaked.keys() == {"Item", "GBinding"} and 0.8 * LOST < leaked["Item"] <= LOST and 0.8 * REMOVED < leaked["GBinding"] <= REMOVED
    miscounted = {row["name"]: row["objects"] for row in answer["reference_counts"]["types"] if row["objects"]}
    assert (row["container"]["what"], row["container"]["length"]) == ("GSequence", 500)
    # Three words may look like the head of a GQueue, but these blocks are not nodes of a list.
    assert [one["container"]["what"] for one in several["children"]] == ["GSequence"] * 3, several
    assert miscounted == leaked


def test_bindings(tmp_path: Path) -> None:
    check([], tmp_path, None)


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_bindings_of_older_releases(version: str, tmp_path: Path) -> None:
    """Before 2.68, a binding has the addresses of both objects."""
    check([], tmp_path, glibs.environment(version))


@pytest.mark.matrix
def test_bindings_of_284(tmp_path: Path) -> None:
    folder = debian.cache() / "glib-2.84"
    debian.unpack_packages("trixie", ["libglib2.0-0t64"], folder, {}, dependencies=True)
    libraries = folder / "root/usr/lib/x86_64-linux-gnu"
    check([str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)], tmp_path, None)
