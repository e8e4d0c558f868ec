"""`roots` on the JVM's heap: variables, class loaders and stacks retain the arrays that the program allocated."""

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
SHARE = 0.98  # of the arrays; if a stale word refers to an array, the word is a separate root
SOME = [
    (jvms.SYSTEM, "-XX:+UseSerialGC"),
    *(pytest.param(one, "-XX:+UseG1GC", marks=pytest.mark.matrix) for one in ("8", "11", "21.0.4", "25.0.2")),
]


ENTRIES = 10_000  # in the list of JavaRoots.java; each entry has an array


def table(count: int) -> int:
    """Return the bytes of `count` arrays and of the array that refers to them. Object sizes are multiples of 8."""
    return count * ARRAY + 16 + 4 * count


@pytest.mark.parametrize(("version", "collector"), SOME)
def test_roots(version: str, collector: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "JavaRoots.java", tmp_path, "--release", "8")
    command = jvms.command(version, tmp_path, "JavaRoots", "3000", "3", str(ENTRIES), options=["-Xmx64m", collector])
    with cores.Running(command, tmp_path) as running:
        where = ("--pid", str(running.pid))
        (heap,) = roots_of(*where)
        text = " ".join(debuggers.findleaks("roots", "--limit", "6", *where).split())
        (one,) = roots_of("JavaRoots.table", *where)
        (of_pattern,) = roots_of("*BUFFERS*", *where)
        (of_object,) = roots_of(one["roots"][0]["address"], *where)
    assert heap["runtime"] == "JVM" and heap["bytes"] > table(3000) and "shared_objects" not in heap
    found = heap["roots"]
    assert [one["bytes"] for one in found] == sorted((one["bytes"] for one in found), reverse=True)
    by_name = {(one["sort"], one["name"]): one for one in found}
    statics = by_name["variable", "static variable JavaRoots.table"]
    assert is_nearly(statics, 3001, table(3000)) and statics["type"] == "byte[][]"
    assert {one["type"]: one["objects"] for one in statics["types"]} == {"byte[]": statics["objects"] - 1, "byte[][]": 1}
    # Local variables of the thread "reader" refer to the middle of this list, too.
    journal = by_name["variable", "static variable JavaRoots.journal"]
    assert is_nearly(journal, 2 * ENTRIES, ENTRIES * (ARRAY + 24))
    assert not any(one["type"] in ("JavaRoots$Entry", "JavaRoots$Cursor") for one in found if one != journal)
    buffers = by_name["thread-local", "thread-local variable JavaRoots.BUFFERS of 3 threads"]
    assert buffers["count"] == 3 and is_nearly(buffers, 3 * 501, 3 * table(500))
    local = by_name["other", 'stack of Java thread "holder"']
    assert is_nearly(local, 2001, table(2000))
    caches = by_name["variable", "static variable JavaRoots$Plugin.cache of 12 classes"]
    assert (caches["count"], caches["objects"], caches["bytes"]) == (12, 12, 12 * 100_016)
    loaders = by_name["class-loader", "class loaders of type JavaRoots$Loader"]
    assert loaders["count"] == 12 and loaders["bytes"] > 6 * 100_016
    assert re.search(r"static variable JavaRoots\.table: byte\[\]\[\], retains [23],\d\d\d byte\[\], 1 byte\[\]\[\] ", text)
    assert re.search(r" MiB 1,\d\d\d thread-local variable JavaRoots\.BUFFERS of 3 threads: 3 objects, such as byte\[\]\[\] ", text)
    assert " 12 class loaders of type JavaRoots$Loader " in text
    assert re.search(rf" … {len(found) - 6} more roots? \(--limit 0: all\)", text)
    # The row is a single root: a pattern of its variable's name, and the object that it refers to.
    assert [row["name"] for row in one["roots"]] == [statics["name"]]
    assert [row["name"] for row in of_pattern["roots"]] == [buffers["name"]]
    assert [(row["sort"], row["holder"], row["objects"]) for row in of_object["roots"]] == [("object", statics["name"], statics["objects"])]


def test_growth(tmp_path: Path) -> None:
    """The second process has more arrays in a static variable, and more threads with a thread-local variable."""
    jvms.compile_java(truth.PROGRAMS / "JavaRoots.java", tmp_path, "--release", "8")
    files = []
    for name, words in (("before", ("100", "3")), ("after", ("3000", "5"))):
        files.append(str(tmp_path / f"{name}.flsnap"))
        with cores.Running(jvms.command(jvms.SYSTEM, tmp_path, "JavaRoots", *words, options=["-XX:+UseSerialGC"]), tmp_path) as running:
            debuggers.findleaks("snapshot", "-o", files[-1], "--pid", str(running.pid))
            single = json.loads(debuggers.findleaks("roots", "--json", "static variable JavaRoots.table", "--pid", str(running.pid)))
    rows = json.loads(debuggers.findleaks("diff", "--json", *files))["grown"]
    grown = {row["name"]: row["counts"] for row in rows if row["what"] == "heap root" and row["within"] == "JVM"}
    few, many = grown["static variable JavaRoots.table"]
    assert SHARE * 101 <= few <= 101 and SHARE * 3001 <= many <= 3001
    few, many = grown["thread-local variable JavaRoots.BUFFERS"]
    assert SHARE * 3 * 501 <= few <= 3 * 501 and SHARE * 5 * 501 <= many <= 5 * 501
    text = debuggers.findleaks("diff", *files)
    assert "JVM's heap: retained by static variable JavaRoots.table" in text
    (root,) = single["heaps"][0]["roots"]
    assert is_nearly(root, 3001, table(3000))


def test_stale_variable_of_the_jvm(tmp_path: Path) -> None:
    """A word in libjvm's data leads to blocks that a Java array refers to. It retains only the table between both."""
    jvms.compile_java(truth.PROGRAMS / "JavaStaleVariable.java", tmp_path)
    command = jvms.command(jvms.SYSTEM, tmp_path, "JavaStaleVariable", options=["-Xmx16m", "-XX:+UseSerialGC"])
    with cores.Running(command, tmp_path) as running:
        found = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", "--pid", str(running.pid)))["roots"]
    first, *others = found
    assert (first["name"].partition(" (")[0], first["sort"]) == ("JVM's Java heap", "mapping")
    assert first["retained_bytes"] >= 100 * 100_000
    stale = [one for one in others if one["name"].startswith("libjvm.so, data+") and one["retained_bytes"] in range(800, 832)]
    assert [(one["retained_blocks"], one["sort"]) for one in stale] == [(1, "variable")]


def roots_of(*words: str) -> Any:
    return json.loads(debuggers.findleaks("roots", "--json", *words))["heaps"]


def is_nearly(row: Mapping[str, Any], objects: int, size: int) -> bool:
    return SHARE * objects <= row["objects"] <= objects and SHARE * size <= row["bytes"] <= size
