"""Classes that a program generates: findleaks reports which class loaders are garbage, and what retains the other class loaders."""

from __future__ import annotations

import json
from pathlib import Path

import jvms
import pytest
import truth
from debuggers import findleaks
from java_frames import VERSIONS
from verdicts import finding, verdict

from cores import Running

LOADER = "JavaGeneratedClasses$Loader"
QUICK = "system"
EACH = [pytest.param(version, marks=() if version == QUICK else pytest.mark.matrix) for version in VERSIONS]


def generate(folder: Path, version: str, kind: str, count: int, *options: str) -> Running:
    jvms.compile_java(truth.PROGRAMS / "JavaGeneratedClasses.java", folder, "--release", "8")
    options = ("-Xint", "-Xmx64m", "-XX:+UseSerialGC", *options)
    return Running(jvms.command(version, folder, "JavaGeneratedClasses", kind, str(count), options=options), folder / "run")


@pytest.mark.parametrize("version", EACH)
def test_class_loaders_that_are_garbage(version: str, tmp_path: Path) -> None:
    """A class loader has a handle for each class, 32 in a chunk. Handles of a class loader that is garbage keep nothing alive. Stale words
    may refer to the last class loader."""
    with generate(tmp_path, version, "dropped", 1000) as running:
        (found,) = json.loads(findleaks("runtime", "--only", "jvm", "--json", "--limit", "0", "--pid", str(running.pid)))["runtimes"]
    (row,) = (one for one in found["types"] if one["name"] == LOADER)
    assert row["objects"] + row["own"]["garbage_objects"] == 10
    assert row["objects"] <= 2


CASES = [(QUICK, "loader"), ("25.0.2", "hidden")]


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        *CASES,
        *(
            pytest.param(version, kind, marks=pytest.mark.matrix)
            for version in VERSIONS
            for kind in (("loader", "hidden") if version not in jvms.DEBIAN else ("loader",))
            if (version, kind) not in CASES
        ),
    ],
)
def test_generated_classes(version: str, kind: str, tmp_path: Path) -> None:
    """The finding names the classes, the class loader, and the variable that keeps them alive. In JDK 8, the JVM's data also refers to
    class loaders, so the path may begin there."""
    count = 4000
    with generate(tmp_path, version, kind, count, "-Xshare:off") as running:
        one = finding(verdict("--pid", str(running.pid)), "class-metadata")
    loader = LOADER if kind == "loader" else "ClassLoaders$AppClassLoader"
    name = "Made…" if kind == "loader" else "Made…/…"
    names = one["evidence"]["class_names"]
    assert (names["name"], len(names["loaders"])) == (name, 1)
    assert count <= names["classes"] <= count + 1
    assert names["loaders"][0].endswith(loader)
    assert f"of the classes are named {name}, and " in one["cause"]
    assert (
        version == "8"
        or "java.lang.Class of JavaGeneratedClasses static .KEPT → java.util.ArrayList.elementData → java.lang.Object[]" in one["cause"]
    )


@pytest.mark.matrix
def test_few_generated_classes(tmp_path: Path) -> None:
    """These classes are reported although they need less than 8 MiB."""
    with generate(tmp_path, QUICK, "hidden", 1200) as running:
        one = finding(verdict("--pid", str(running.pid)), "class-metadata")
    assert one["bytes"] < 8 << 20
    assert one["evidence"]["class_names"]["name"] == "Made…/…"
    assert 1200 <= one["evidence"]["class_names"]["classes"] <= 1201
