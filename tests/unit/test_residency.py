"""Resident pages: read from a stopped process, also on older versions of Linux; and from the side file, intact and damaged."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from fake import FakeTarget
from hypothesis import given
from hypothesis import strategies as st

from findleaks.audit.residency import read_residency, read_residency_file, save_residency
from findleaks.errors import FindleaksError, Interrupted
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.residency import presence
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

PAGE = mmap.PAGESIZE


PROGRAM = """
import ctypes, mmap, os, signal
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: khugepaged would go on in a stopped process
page = mmap.PAGESIZE
mapped = mmap.mmap(-1, 310 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for number in range(300):
    if number % 3 == 0:
        mapped[number * page] = 1
    elif number % 5 == 0:
        assert mapped[number * page] == 0
start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
ctypes.CDLL(None).madvise(ctypes.c_void_p(start + 300 * page), ctypes.c_size_t(10 * page), 102)  # MADV_GUARD_INSTALL, Linux 6.13
print(start, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


class StoppedProcess(NamedTuple):
    """A stopped process with a mapping of 300 pages from `start` on, and 10 guard pages after them."""

    proc: str
    start: int
    wanted: list[bool]  # for each page: whether it is resident


@pytest.fixture
def memory() -> Iterator[StoppedProcess]:
    """Return a process that wrote to every third page, and only read every fifth of the other pages (which are zero pages)."""
    with subprocess.Popen([sys.executable, "-I", "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            start = int(process.stdout.readline())
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            yield StoppedProcess(f"/proc/{process.pid}", start, [page % 3 == 0 for page in range(300)])
        finally:
            process.kill()


def find_residency(memory: StoppedProcess) -> tuple[Presence, list[bool]]:
    """Return the residency of the process, and of each page of the mapping."""
    start = memory.start
    found = presence.read_presence(memory.proc, PAGE, lambda part: None)
    assert found is not None and found.known.bytes(start, start + 300 * PAGE) == 300 * PAGE
    assert found.resident.bytes(start + 300 * PAGE, start + 310 * PAGE) == found.swapped.bytes(start + 300 * PAGE, start + 310 * PAGE) == 0
    return found, [found.resident.bytes(start + page * PAGE, start + page * PAGE + PAGE) == PAGE for page in range(len(memory.wanted))]


def test_a_stopped_process(memory: StoppedProcess) -> None:
    found, pages = find_residency(memory)
    assert pages == memory.wanted
    assert found.rss is not None and abs(found.resident.total - found.rss) < 1 << 20


def _disable_pagemap_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(presence, "scan_pagemap", refuse)


def test_a_kernel_without_pagemap_scan(memory: StoppedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux shows page frame numbers only to root. They are needed to recognise the zero page."""
    _disable_pagemap_scan(monkeypatch)
    root = os.geteuid() == 0
    assert find_residency(memory)[1] == [page % 3 == 0 or (page % 5 == 0 and not root) for page in range(300)]


def test_a_kernel_without_pagemap_scan_without_root(memory: StoppedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, the zero page cannot be recognised. A note says that the mapping may contain zero pages."""
    _disable_pagemap_scan(monkeypatch)
    monkeypatch.setattr(presence, "_zeros", lambda entries, kinds: [])
    found, pages = find_residency(memory)
    assert pages == [page % 3 == 0 or page % 5 == 0 for page in range(300)]
    assert any(part.start <= memory.start < part.end for part in found.unsure)


def test_no_such_process() -> None:
    assert presence.read_presence("/proc/0", PAGE, lambda part: None) is None


def make_runs(rng: random.Random) -> Runs:
    points = sorted(rng.sample(range(1, 1 << 36), 2 * rng.randrange(20)))
    return Runs.of((a * PAGE, b * PAGE) for a, b in zip(points[::2], points[1::2]))


def fake(pages: Optional[Presence] = None, pid: int = 4711, vector: Optional[dict[int, int]] = None) -> FakeTarget:
    made = FakeTarget({0x1000: bytes(PAGE)}, pid=pid)
    made.pages = pages
    made.auxv = vector or {3: 0x1040, 25: 0x7FFE12345678}
    return made


def make_presence(rng: random.Random) -> Presence:
    return Presence("pagemap", make_runs(rng), make_runs(rng), make_runs(rng), rng.choice((None, 12345)), (Range(PAGE, 2 * PAGE),))


@given(seed=st.integers(0, 2**32 - 1))
def test_side_file_has_the_same_result(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    pages = make_presence(random.Random(seed))
    file = tmp_path_factory.mktemp("side") / "file"
    saved = save_residency(Session(fake(pages)), str(file))
    again = read_residency_file(str(file), fake())
    assert again.source == "side file" and again.saved.endswith("Z")
    for one in (saved, again):
        assert (one.known.words, one.resident.words, one.swapped.words) == (pages.known.words, pages.resident.words, pages.swapped.words)
        assert (one.rss, one.unsure) == (pages.rss, pages.unsure)


def write_file(tmp_path: Path) -> Path:
    save_residency(Session(fake(make_presence(random.Random(5)))), str(tmp_path / "side"))
    return tmp_path / "side"


def test_side_file_of_another_process_is_refused(tmp_path: Path) -> None:
    file = str(write_file(tmp_path))
    with pytest.raises(FindleaksError, match="belongs to process 4711, but the target is process 12"):
        read_residency_file(file, fake(pid=12))
    with pytest.raises(FindleaksError, match="belongs to another process that had pid 4711"):
        read_residency_file(file, fake(vector={3: 0x1040, 25: 0x7FFE00000000}))


def _head(file: Path, **changes: object) -> None:
    line, body = file.read_bytes().split(b"\n", 1)
    file.write_bytes(json.dumps({**json.loads(line), **changes}).encode() + b"\n" + body)


@pytest.mark.parametrize(
    "changes",
    [
        {"page": 0},
        {"page": 1 << 70},
        {"known": -1},
        {"known": 1 << 40},
        {"resident": 1.5},
        {"resident": None},
        {"known": 0},
        {"swapped": 1 << 20},
        {"findleaks-residency": 2},
        {"findleaks-residency": "\x1b[31m"},
        {"pid": "\x1b[31m"},
    ],
)
def test_damaged_first_line(changes: dict[str, object], tmp_path: Path) -> None:
    file = write_file(tmp_path)
    _head(file, **changes)
    with pytest.raises(FindleaksError) as error:
        read_residency_file(str(file), fake())
    assert "\x1b" not in str(error.value) and "\n" not in str(error.value) and str(file) in str(error.value)


@given(seed=st.integers(0, 2**32 - 1))
def test_damage_at_any_byte(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    file = write_file(tmp_path_factory.mktemp("side"))
    data = bytearray(file.read_bytes())
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    for _ in range(rng.randrange(4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    file.write_bytes(data)
    try:
        found = read_residency_file(str(file), fake())
    except FindleaksError:
        return
    for runs in (found.known, found.resident, found.swapped):
        assert list(runs.words) == sorted(set(runs.words))


def test_ranges_that_do_not_ascend(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    line, _ = file.read_bytes().split(b"\n", 1)
    for words in ([1, 1, 0, 5], [1, 0], [1 << 63, 1 << 63]):
        head = {**json.loads(line), "known": len(words) // 2, "resident": 0, "swapped": 0}
        file.write_bytes(json.dumps(head).encode() + b"\n" + zlib.compress(array("Q", words).tobytes()))
        with pytest.raises(FindleaksError, match="are not ascending"):
            read_residency_file(str(file), fake())


def test_unpacked_size_is_limited(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    line, _ = file.read_bytes().split(b"\n", 1)
    file.write_bytes(line + b"\n" + zlib.compress(bytes(100 << 20)))
    with pytest.raises(FindleaksError, match="truncated"):
        read_residency_file(str(file), fake())


def test_known_ranges() -> None:
    known, resident = Runs.of([(0x1000, 0x5000)]), Runs.of([(0x2000, 0x3000), (0x4000, 0x9000)])
    made = Presence("pagemap", known, resident, Runs.of([(0x3000, 0x4000)]))
    assert (made.bytes(0x1000, 0x5000), made.bytes(0x4000, 0x6000), made.bytes(5, 5)) == (0x2000, None, 0)
    assert made and not read_residency(Session(fake()))


def test_interrupted() -> None:
    target = fake()

    def look(tell: object) -> Presence:
        tell(0.5)  # type: ignore[operator]
        raise AssertionError("not interrupted")

    target.presence = look  # type: ignore[method-assign, assignment]
    target._left = 0
    with pytest.raises(Interrupted):
        read_residency(Session(target))


@given(seed=st.integers(0, 2**32 - 1))
def test_runs(seed: int) -> None:
    rng = random.Random(seed)
    points = sorted(rng.sample(range(200), 2 * rng.randrange(8)))
    pairs = list(zip(points[::2], points[1::2]))
    runs = Runs.of(pairs)
    inside = {at for start, end in pairs for at in range(start, end)}
    low, high = rng.randrange(200), rng.randrange(200)
    assert runs.total == len(inside) and [Range(*pair) for pair in pairs] == list(runs) and len(runs) == len(pairs)
    assert runs.bytes(low, high) == len(inside & set(range(low, high)))
    assert {at for start, end in runs.within(low, high) for at in range(start, end)} == inside & set(range(low, high))
    assert [at in runs for at in range(200)] == [at in inside for at in range(200)]
    with pytest.raises(ValueError, match="lies below"):
        Runs.of([(5, 9), (8, 10)])
