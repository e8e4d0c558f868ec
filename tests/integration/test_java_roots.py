"""What `roots` says of the JVM's heap: variables, class loaders and stacks retain the arrays that the program made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import debuggers
import jvms
import pytest
import truth

import cores

ARRAY = 16 + 1000
SHARE = 0.98  # of the arrays; stale words may refer to some, which then are roots of their own
SOME = [
    (jvms.SYSTEM, "-XX:+UseSerialGC"),
    *(pytest.param(one, "-XX:+UseG1GC", marks=pytest.mark.matrix) for one in ("8", "11", "21.0.4", "25.0.2")),
]


def table(count: int) -> int:
    """Bytes of so many arrays, and of the array that refers to them; the sizes of objects are multiples of 8."""
    return count * ARRAY + 16 + 4 * count


@pytest.mark.parametrize(("version", "collector"), SOME)
def test_roots(version: str, collector: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "JavaRoots.java", tmp_path, "--release", "8")
    command = jvms.command(version, tmp_path, "JavaRoots", options=["-Xmx64m", collector])
    with cores.Running(command, tmp_path) as running:
        found = json.loads(debuggers.findleaks("roots", "--json", "--pid", str(running.pid)))["objects"]
        text = " ".join(debuggers.findleaks("roots", "--limit", "6", "--pid", str(running.pid)).split())
    assert {one["runtime"] for one in found} == {"JVM"}
    assert [one["retained_bytes"] for one in found] == sorted((one["retained_bytes"] for one in found), reverse=True)
    by_name = {(one["sort"], one["name"]): one for one in found}
    statics = by_name["static variable", "JavaRoots.table"]
    assert is_nearly(statics, 3001, table(3000)) and statics["type"] == "byte[][]"
    buffers = by_name["thread-local variable", "JavaRoots.BUFFERS of 3 threads"]
    assert buffers["count"] == 3 and is_nearly(buffers, 3 * 501, 3 * table(500))
    local = by_name["object", 'stack of Java thread "holder"']
    assert is_nearly(local, 2001, table(2000))
    caches = by_name["static variable", "JavaRoots$Plugin.cache of 12 classes"]
    assert (caches["count"], caches["retained_objects"], caches["retained_bytes"]) == (12, 12, 12 * 100_016)
    loaders = by_name["class loader", "JavaRoots$Loader"]
    assert loaders["count"] == 12 and loaders["retained_bytes"] > 6 * 100_016
    assert "static variable JavaRoots.table: byte[][]" in text
    assert re.search(r" MiB 1,\d\d\d thread-local variable JavaRoots\.BUFFERS of 3 threads: 3 objects, such as byte\[\]\[\] ", text)
    assert " 12 class loaders of type JavaRoots$Loader " in text


def is_nearly(row: Mapping[str, Any], objects: int, size: int) -> bool:
    return SHARE * objects <= row["retained_objects"] <= objects and SHARE * size <= row["retained_bytes"] <= size
