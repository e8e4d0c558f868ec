"""Objects are in a table and in a list: `verdict` and `roots` name the two variables that retain them together, and the object that
contains the variables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import debuggers
import go_programs
import jvms
import mallocs_python
import nodes
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

COUNT, BYTES = 20_000, 500  # number of sessions, and bytes of each session
MORE = 2 * COUNT  # number of sessions where other objects of the runtime take more memory


def answer(*words: str) -> dict[str, Any]:
    return dict(json.loads(debuggers.findleaks(*words, "--json")))


def finding(kind: str, *where: str) -> dict[str, Any]:
    """Return the only finding of this kind, with its cause added to `text`. `find` must suggest `verdict` first, because few blocks are
    leaked."""
    assert answer("find", *where)["next"][0].split()[0] == "verdict"
    (one,) = (one for one in answer("verdict", *where)["findings"] if one["finding"] == kind)
    return {**one, "text": f"{one['text']} {one['cause']}"}


def check_roots(name: str, members: Sequence[str], where: Sequence[str]) -> dict[str, Any]:
    """Check that the root retains the sessions, and that `roots` finds it by its own name and by the names of its variables."""
    (first,) = answer("roots", name, *where)["roots"]
    assert first["name"].startswith(f"{name} (")
    assert COUNT * BYTES < first["retained_bytes"] < 2 * COUNT * BYTES
    for member in members:
        assert answer("roots", member, *where)["roots"] == [first]
    return dict(first)


@pytest.mark.parametrize("version", mark_matrix_except(mallocs_python.SUITES.keys(), "3.11"))
def test_variables_of_a_python_module(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    command = python.command(str(truth.PROGRAMS / "joint.py"), "globals", str(COUNT))
    with cores.Running(command, tmp_path, python.environment()) as running:
        where = "--pid", str(running.pid)
        found = finding("held", *where)
        root = check_roots("__main__: by_id and recent", ("__main__.by_id", "__main__.recent"), where)
    assert "__main__: by_id and recent (CPython variables) together retain" in found["text"]
    assert f"both __main__.by_id (dict of {COUNT:,}) and __main__.recent (list of {COUNT:,})" in found["text"]
    assert [one["name"] for one in root["children"]] == ["__main__.by_id", "__main__.recent"]
    assert root["shared_children"][0]["name"] == f"{COUNT:,} of __main__.Session"


@pytest.mark.parametrize("version", mark_matrix_except(mallocs_python.SUITES.keys(), "3.11"))
def test_attributes_of_a_python_object(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    command = python.command(str(truth.PROGRAMS / "joint.py"), "attributes", str(COUNT))
    with cores.Running(command, tmp_path, python.environment()) as running:
        found = finding("held", "--pid", str(running.pid))
    assert "__main__.registry (CPython variable) alone retains" in found["text"]
    assert f"by_id (dict of {COUNT:,}) and " in found["text"].replace('["by_id"]', "by_id").replace(".by_id", "by_id")


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_variables_of_a_ruby_object(version: str, tmp_path: Path) -> None:
    ruby = rubies.get(version)
    command = [*ruby.words, str(truth.PROGRAMS / "joint.rb"), str(COUNT)]
    with cores.Running(command, tmp_path, dict(ruby.environment)) as running:
        where = "--pid", str(running.pid)
        found = finding("held", *where)
        root = check_roots("REGISTRY: @by_id and @recent", ("REGISTRY.@by_id", "REGISTRY.@recent"), where)
    assert "REGISTRY: @by_id and @recent (Ruby variables) together retain" in found["text"]
    assert root["what"].startswith(f"@by_id: Hash, {COUNT:,} entries; @recent: Array, {COUNT:,} elements, with ")
    assert root["objects"]["count"] >= 2 * COUNT


def test_variables_of_perl(tmp_path: Path) -> None:
    with cores.Running(["perl", str(truth.PROGRAMS / "joint.pl"), str(COUNT)], tmp_path) as running:
        where = "--pid", str(running.pid)
        found = finding("held", *where)
        check_roots("%main::by_id and @main::recent", ("%main::by_id", "@main::recent"), where)
    assert f"both %main::by_id (HASH of {COUNT:,}) and @main::recent (ARRAY of {COUNT:,})" in found["text"]


def test_properties_of_a_php_object(tmp_path: Path) -> None:
    with cores.Running(["php", str(truth.PROGRAMS / "joint.php"), str(COUNT)], tmp_path) as running:
        where = "--pid", str(running.pid)
        found = finding("held", *where)
        check_roots("Registry: byId and recent", ("Registry->byId", "Registry->recent"), where)
    assert "Registry: byId and recent (PHP variables) together retain" in found["text"]


def test_variables_of_a_javascript_module(tmp_path: Path) -> None:
    program = truth.PROGRAMS / "joint.js"
    command = [nodes.get(nodes.NEWEST), "--expose-gc", *nodes.STEADY, str(program), str(COUNT)]
    with cores.Running(command, tmp_path) as running:
        found = finding("retained-objects", "--pid", str(running.pid))
    assert f"variables byId and recent ({program}) together retain" in found["text"]
    assert f"They retain {COUNT:,} Session" in found["text"]
    assert found["evidence"]["retained_objects"] > 3 * COUNT


def test_variables_of_a_go_package(tmp_path: Path) -> None:
    program = go_programs.build(tmp_path, "", name="joint")
    with cores.Running([str(program), str(COUNT)], tmp_path / "run") as running:
        where = "--pid", str(running.pid)
        found = finding("live-objects", *where)
        (heap,) = answer("roots", "main.recent", *where)["heaps"]
    assert "are retained by variables main: byID and recent." in found["text"]
    (root,) = heap["roots"]
    assert root["name"] == "variables main: byID and recent" and root["objects"] > COUNT
    assert root["types"][0] == {"type": "main.Session", "objects": COUNT, "bytes": COUNT * 512}


@pytest.mark.parametrize(
    ("how", "expected"), [((), ["unread-memory", "live-objects"]), (("known",), ["go-mappings", "live-objects", "unread-memory"])]
)
def test_what_explains_unread_memory(how: Sequence[str], expected: Sequence[str], tmp_path: Path) -> None:
    """The finding about Go's objects has half the size of the unread mapping, but it is about other memory."""
    program = go_programs.build(tmp_path, "", name="joint")
    with cores.Running([str(program), str(MORE), "36", *how], tmp_path / "run") as running:
        findings = answer("verdict", "--pid", str(running.pid))["findings"]
    assert [one["finding"] for one in findings][: len(expected)] == expected
    assert next(one["bytes"] for one in findings if one["finding"] == "live-objects") > 18 << 20


@pytest.mark.parametrize("version", mark_matrix_except(("8", "11", jvms.SYSTEM, "25.0.2"), jvms.SYSTEM))
def test_static_variables_of_a_java_class(version: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "JavaJoint.java", tmp_path, "--release", "8")
    command = jvms.command(version, tmp_path, "JavaJoint", str(MORE), options=["-Xmx128m", "-XX:+UseSerialGC"])
    with cores.Running(command, tmp_path) as running:
        where = "--pid", str(running.pid)
        found = finding("retained-objects", *where)
        (heap,) = answer("roots", "JavaJoint.RECENT", *where)["heaps"]
    (root,) = heap["roots"]
    assert root["name"] in ("static variables JavaJoint: BY_ID and RECENT", "static variables JavaJoint: RECENT and BY_ID")
    assert f"{root['name']} together retain" in found["text"]
    assert root["objects"] > 3 * MORE and root["bytes"] > MORE * BYTES
