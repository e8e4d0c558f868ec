"""Reserved addresses do not count as memory: `verdict` of a process, of its kernel's core and of gcore's core, compared with smaps."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import building
import jvms
import pytest
import truth
from counting import suspend
from debuggers import findleaks, gdb, lldb, objects
from verdicts import finding, share, sorts, verdict

from cores import Running

THREADS = 6


class Mapping(NamedTuple):
    start: int
    end: int
    permissions: str
    name: str
    rss: int


def smaps(pid: int) -> list[Mapping]:
    found = []
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M):
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)", part)
        rss = re.search(r"^Rss: +(\d+) kB", part, re.M)
        if head and rss:
            found.append(Mapping(int(head[1], 16), int(head[2], 16), head[3], head[4], int(rss[1]) << 10))
    return found


def sum_closed(mappings: list[Mapping]) -> int:
    return sum(one.end - one.start for one in mappings if one.permissions == "---p" and not one.name)


def sum_reserved(found: dict[str, Any], of: str = "") -> int:
    return sum(one["bytes"] for one in found["reserved"] if (one["of"] or "").startswith(of))


program = building.fixture("reserved.c", "-O1", "-g", "-pthread")


class Pictures(NamedTuple):
    """One process in three forms, what the program printed, and its smaps from before."""

    live: dict[str, Any]
    kernel: dict[str, Any]
    gcore: dict[str, Any]
    said: list[int]
    mappings: list[Mapping]
    core: Path


@pytest.fixture(scope="module")
def pictures(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    with Running([str(program), str(THREADS)], tmp_path_factory.mktemp("run")) as run:
        mappings = smaps(run.pid)
        live = verdict("--pid", str(run.pid))
        core = run.gcore()
        core = core.rename(core.parent.parent / f"{core.parent.name}.gcore")
        kernel = verdict(str(run.kernel_core()))
        return Pictures(live, kernel, verdict(str(core)), [int(word) for word in run.output.split()[:5]], mappings, core)


def test_reserved_ends_of_arenas(pictures: Pictures) -> None:
    # An arena begins at a multiple of 64 MiB. Its reserved end follows the part in use. Another reservation may end at the start of an
    # arena.
    beside = zip(pictures.mappings, pictures.mappings[1:])
    opened = [(before, one) for before, one in beside if before.end == one.start and before.start % (64 << 20) == 0]
    ends = [one for before, one in opened if before.permissions == "rw-p" and one.permissions == "---p" and one.end % (64 << 20) == 0]
    assert len(ends) >= THREADS
    for found in (pictures.live, pictures.kernel, pictures.gcore):
        assert sum_reserved(found, "glibc") == sum(one.end - one.start for one in ends) > 100 << 20
        assert sum_reserved(found) == sum_closed(pictures.mappings)
    assert sum_reserved(pictures.live) > 10 * pictures.live["resident"] / 2
    stacks, files = share(pictures.gcore, "stacks"), share(pictures.gcore, "files")
    assert pictures.gcore["mapped"] - stacks - files < pictures.live["resident"] + sum(pictures.said[:3])


def test_leak_comes_first_without_residency(pictures: Pictures) -> None:
    looked, written, untouched, blocks, lost = pictures.said
    assert pictures.gcore["residency"] == "unknown"
    leak = finding(pictures.gcore, "lost")
    assert (leak["evidence"]["blocks"], leak["bytes"]) == (blocks, lost)
    unknown = finding(pictures.gcore, "unknown-owner")
    assert looked + written + untouched <= unknown["bytes"] <= looked + written + untouched + (1 << 20)
    assert sorts(pictures.gcore) == ["lost", "unknown-owner"]  # although it is ten times as large
    for found in (pictures.live, pictures.kernel):
        assert written <= share(found, "unknown") <= written + (1 << 20)
        assert sorts(found) == ["lost", "unknown-owner"]


def test_zero_page_is_not_counted(program: Path, tmp_path: Path) -> None:
    """The first screen has one figure: pages that were only read are not resident."""
    with Running([str(program), "1"], tmp_path) as run:
        found = verdict("--pid", str(run.pid))
        assert found["findings"][0]["text"].endswith("9.0 MiB in unattributed anonymous mappings. Leaks inside it are not reported.")
        lost = json.loads(findleaks("find", "--json", "--pid", str(run.pid)))
        assert lost["unread"] == found["unread"]


def test_front_ends_agree_on_reserved_addresses(pictures: Pictures, program: Path) -> None:
    core = str(pictures.core)
    here = objects(findleaks("verdict", "--json", core))
    assert objects(gdb(["leaks verdict --json"], str(program), core)) == here
    assert objects(lldb(["leaks verdict --json"], str(program), "-c", core)) == here
    text = " ".join(findleaks("verdict", core).split())
    assert "more address space is reserved without memory (glibc 2." in text
    end = next(one for one in pictures.mappings if one.permissions == "---p" and one.end % (64 << 20) == 0)
    assert "reserved by glibc 2." in findleaks("whatis", hex(end.start + 4096), core)


@pytest.mark.matrix
def test_python_engine(pictures: Pictures) -> None:
    words = ("verdict", "--json", str(pictures.core))
    assert findleaks(*words, FINDLEAKS_PURE="1") == findleaks(*words)


def test_java_heap_and_ends_of_arenas(tmp_path: Path) -> None:
    """A JVM reserves one gigabyte for classes, and gcore writes all of it. The file `modules` is mapped shared, but is a file. The JVM is
    suspended, so its compilers change nothing while findleaks and gcore read it."""
    home = Path(shutil.which("java") or "").resolve().parent
    jvms.compile_java(truth.PROGRAMS / "Tracked.java", tmp_path)
    options = [
        "-Xmx128m",
        "-Xms16m",
        "-XX:+UseSerialGC",
        "-XX:CompressedClassSpaceSize=128m",
        "-XX:ReservedCodeCacheSize=32m",
        "-cp",
        str(tmp_path),
    ]
    with Running([str(home / "java"), *options, "Tracked"], tmp_path / "run", {**os.environ, "MALLOC_ARENA_MAX": "2"}) as run:
        suspend(run.pid)
        mappings = smaps(run.pid)
        live = verdict("--pid", str(run.pid))
        later = smaps(run.pid)
        parts = [json.loads(findleaks("runtime", "--no-native", "--json", "--pid", str(run.pid)))["runtimes"][0]["parts"]]
        core = str(run.gcore())
        dumped = verdict(core)
        parts.append(json.loads(findleaks("runtime", "--no-native", "--json", core))["runtimes"][0]["parts"])
    (modules,) = {one.name for one in mappings if one.permissions == "r--s" and one.name.endswith("/modules")}
    # The kernel may drop pages of a file at any time.
    resident = min(sum(one.rss for one in each if one.name == modules) for each in (mappings, later))
    (files,) = [one for one in live["shares"] if one["share"] == "files"]
    assert resident <= next(one["bytes"] for one in files["largest"] if one["name"] == "modules")
    assert share(live, "shared") <= sum(one.rss for one in mappings if one.permissions[3] == "s" and one.name != modules)
    for found in (live, dumped):
        assert sum_reserved(found, "JVM") > 200 << 20
        assert 0 <= sum_reserved(found) - sum_closed(mappings) <= 4096  # gcore's core does not record the protection of one page of the JVM
        assert not {"unknown-owner", "lost"} & set(sorts(found))
    sizes = [{part["name"]: part["bytes"] for part in its} for its in parts]
    assert sizes[0] == sizes[1]
