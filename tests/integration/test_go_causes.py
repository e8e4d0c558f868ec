"""More leaks in stripped Go programs, built with old and new versions of Go. The first finding of `verdict` is the cause, with the
program's counts."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from debuggers import findleaks, runtime_page
from go_programs import STRIPPED, build

from cores import Running

# For each kind: the number of leaks, the finding, a pattern of its text, and the first version of Go with this result ("": all versions).
KINDS: dict[str, tuple[int, str, str, str]] = {
    "heartbeats": (
        6_000,
        "go-timers",
        r"timers that have not fired retain .* 6,000 of the timers call main\.heartbeats\.func2\. stop timers",
        "",
    ),
    "after": (60_000, "go-timers", r"timers that have not fired .* 60,000 chan time\.Time .* 60,00[01] time\.Timer", ""),
    "tickers": (20_000, "retained-objects", r"\(used in main\.tickers\) retains .* \[\]\*main\.Session\. .* 20,000 main\.Session", "1.22"),
    "defers": (
        20_000,
        "retained-objects",
        r"goroutine \d+ \(waiting, sleep\), in main\.process retains .* 60,000 objects .* defer in a loop",
        "",
    ),
    "called": (20_000, "retained-objects", r"system call\), in main\.processInCall retains .* 60,000 objects .* defer in a loop", ""),
    "closures": (10_000, "go-finalizer-cycles", r"Probably leaked: finalizers .* 16 objects were checked.* use only its argument", ""),
    "queue": (20_000, "retained-objects", r"\(used in main\.queue\) retains .* in 20,00[01] objects", ""),
    "subscribers": (20_000, "retained-objects", r"\(at \+8 of one used in main\.(\(\*Broker\)\.subscribe|subscribers)\) retains", ""),
    "buffers": (
        40,
        "retained-objects",
        r"used in main\.buffers\) retains 40 MiB .* \[\]sync\.poolLocal\. .* put buffers into a sync\.Pool",
        "",
    ),
    "versions": (20_000, "retained-objects", r"\(used in main\.versions\) retains .* in 20,000 objects .* 20,000 main\.Version", ""),
    "handlers": (
        1_000,
        "goroutines",
        r"1,000 goroutines wait in main\.report \(\S+:\d+\): chan receive\. .* With 1,000 goroutines that",
        "",
    ),
    "clients": (
        500,
        "goroutines",
        r"500 goroutines wait in net/http\.\(\*persistConn\)\.readLoop .*: IO wait\. .* use one http\.Client",
        "",
    ),
    "bodies": (
        200,
        "goroutines",
        r"200 goroutines wait in net/http\.\(\*persistConn\)\.readLoop .*: select\. .* close the body of each response",
        "",
    ),
    "syncmap": (20_000, "retained-objects", r"\(at \+\d+ of one used in main\.syncmap.* retains .* 20,000 main\.Session", ""),
    "loops": (
        1_000,
        "goroutines",
        r"1,000 goroutines wait in main\.\(\*Session\)\.loop .* is that of a ticker or timer\. .* second channel",
        "1.22",
    ),
    "deadlines": (
        5_000,
        "live-objects",
        r"5,000 main\.Session .*WithDeadline.* call the cancel function of each context with a timeout",
        "1.24",  # in older versions, the path through the map of children has the same length
    ),
    "mappings": (20, "go-mappings", r"leaked: 20 MiB in 20 mappings of syscall\.Mmap .* 20 of 1\.0 MiB\. call syscall\.Munmap", ""),
}
DEFAULT = ("heartbeats", "bodies", "mappings")
UNTIL = {"after": "1.22"}  # since 1.23, the collector frees timers that have not fired


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2])) if version else (99,)


CASES = [
    pytest.param(kind, version, marks=() if kind in DEFAULT and not version else pytest.mark.matrix)
    for kind, (_, _, _, since) in KINDS.items()
    for version in ("", "1.18.10", "1.22.12")
    if (not since or number(version) >= number(since)) and (kind not in UNTIL or number(version) <= number(UNTIL[kind]))
]


@pytest.fixture(scope="module")
def build_causes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds the program with a version of Go, and keeps it until the last test of this file."""
    return functools.cache(lambda version: build(tmp_path_factory.mktemp("go"), version, STRIPPED, name="go_causes"))


@pytest.mark.parametrize(("kind", "version"), CASES)
def test_the_first_finding_is_the_cause(kind: str, version: str, build_causes: Callable[[str], Path], tmp_path: Path) -> None:
    count, name, text, _ = KINDS[kind]
    with Running([str(build_causes(version)), kind, str(count)], tmp_path / "run") as run:
        core = str(run.gcore())
    found, *others = read_findings(core)
    assert found["finding"] == name, found
    assert name != "go-mappings" or "unread-memory" not in [one["finding"] for one in others]  # this memory is not reported twice
    said = " ".join(f"{found['text']} {found['cause']} {' '.join(found['try'])}".split())
    assert re.search(text, said), said
    check_types(kind, version, count, core)


# For each kind: the number, the finding, a pattern of its text, and the minimum and the maximum of its resident memory in MiB. Large pages
# may add 2 MiB at each end of an array.
UNUSED: dict[str, tuple[int, str, str, tuple[int, int]]] = {
    "ballast": (20, "retained-objects", r"main\.ballast.* retains 512 MiB \(\d\d MiB of it resident\) in 1 object of Go", (20, 24)),
    "beside": (40_000, "retained-objects", r"used in main\.syncmap.* retains [^(]* in \d+,\d+ objects of Go", (35, 60)),
    "unused": (1_000, "goroutines", r"1,000 goroutines .* Only they refer to 1\.0 GiB \(\S+ \w+ of it resident\) in 1,00\d", (0, 8)),
}
CLASSIC_MAP = (1_000, "go-map", r"takes \d+ MiB \(\S+ MiB of it resident\) for 1,000 entries: .* or was created for more", (1, 16))


@pytest.mark.parametrize(
    ("kind", "version"),
    [("ballast", "")]
    + [pytest.param(kind, "", marks=pytest.mark.matrix) for kind in UNUSED if kind != "ballast"]
    + [pytest.param(kind, version, marks=pytest.mark.matrix) for kind in UNUSED for version in ("1.18.10", "1.22.12")]
    + [pytest.param("sized", "1.22.12", marks=pytest.mark.matrix)],
)
def test_memory_that_was_never_used(kind: str, version: str, build_causes: Callable[[str], Path], tmp_path: Path) -> None:
    """A finding says how much of the memory is resident, and only resident memory counts when findings are chosen."""
    count, name, text, (least, most) = UNUSED.get(kind, CLASSIC_MAP)
    with Running([str(build_causes(version)), kind, str(count)], tmp_path / "run") as run:
        found = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"][0]
    said = " ".join(f"{found['text']} {found['cause']}".split())
    assert found["finding"] == name and re.search(text, said), said
    resident = found["bytes"] if found["resident_bytes"] is None else found["resident_bytes"]
    assert least << 20 <= resident <= most << 20, found


@pytest.mark.matrix
def test_tickers_with_channels_of_older_versions(build_causes: Callable[[str], Path], tmp_path: Path) -> None:
    """Since Go 1.23, channels of timers refer to the timer, except with this setting: the default for modules of older versions. Programs
    of Go 1.27 and later refuse to start with it, so the version is fixed."""
    environment = {**os.environ, "GODEBUG": "asynctimerchan=1"}
    with Running([str(build_causes("1.24.11")), "loops", "300"], tmp_path / "run", environment) as run:
        text = json.loads(findleaks("verdict", "--json", "--pid", str(run.pid)))["findings"][0]["cause"]
    assert "The channel is that of a ticker or timer." in " ".join(text.split())


def read_findings(core: str) -> list[dict[str, Any]]:
    return list(json.loads(findleaks("verdict", "--json", core))["findings"])


def check_types(kind: str, version: str, count: int, core: str) -> None:
    """Check the number of objects of one type of the runtime or of the package sync. Go itself may have a few more objects of the type."""
    timer = "runtime.timeTimer" if number(version) >= (1, 23) else "time.Timer"
    wanted = {"heartbeats": timer, "after": timer, "queue": "chan *main.Session", "defers": "runtime._defer", "called": "runtime._defer"}
    if number(version) >= (1, 22):
        wanted["tickers"] = timer
    if number(version) >= (1, 24):
        wanted["syncmap"] = "sync.entry[interface {},interface {}]"
    if kind in wanted:
        least = 1 if kind == "queue" else count
        objects = {one["name"]: one["objects"] for one in runtime_page("go", core)["types"]}
        assert least <= objects[wanted[kind]] <= least + 10, objects


@pytest.mark.parametrize("version", ["", pytest.param("1.22.12", marks=pytest.mark.matrix)])
def test_references_that_were_overwritten(version: str, tmp_path: Path) -> None:
    """Stale pointers in the collector's buffers do not count as references. The program is a PIE: at lower addresses, some numbers in the
    program would look like addresses."""
    count = 1000
    program = build(tmp_path, version, STRIPPED, "-buildmode=pie", name="go_overwritten", cgo=True)
    with Running([str(program), str(count)], tmp_path / "run") as run:
        found = json.loads(findleaks("find", "--json", "--pid", str(run.pid)))
    lost = sum(one["blocks"] for one in found["groups"] if one["sizes"][0] >= 3000)
    assert count * 9 // 10 - 5 <= lost <= count * 9 // 10
