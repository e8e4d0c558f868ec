"""Cores whose headers claim far more than the file contains: the work is proportional to the contents. Work is counted, not timed."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TypeVar

import elfcore
import pytest
from elfcore import Load, Task
from hostile import PAGE, Claim, TooMuch, hostile, lines_run, tail, threads
from variants import mark_matrix_except

from findleaks.cli import main
from findleaks.libc.loader import table_blocks
from findleaks.runtimes.node.heap import chunks
from findleaks.target.base import Piece
from findleaks.target.core import open_core
from findleaks.target.ranges import nonzero_pieces
from findleaks.target.reader import SKIP, ExtentReader
from findleaks.target.residency.holes import data_parts
from findleaks.target.runs import Runs

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
FREE = 0x1000_0000_0000
MANY = 800
COUNTS = mark_matrix_except([100, 200], 100)
"""How many claims the work is counted for; then for four times as many."""
TERABYTE = 1 << 40
_Item = TypeVar("_Item")


@pytest.fixture(scope="module")
def base() -> bytes:
    """Return a real core of a process with a glibc heap and leaks."""
    return gzip.decompress(SAMPLE.read_bytes())


def run(word: str, path: Path) -> dict[str, object]:
    """Return the JSON of a command. Its warnings are dropped."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        assert main([word, "--json", str(path)]) == 0
    found: dict[str, object] = json.loads(said.getvalue())
    return found


def make_disjoint(count: int, at: int) -> list[Claim]:
    return [Claim(FREE + number * 2 * PAGE, PAGE, at + number * PAGE, PAGE) for number in range(count)]


def make_nested(count: int, at: int) -> list[Claim]:
    return [Claim(FREE + number * PAGE, 2 * (count - number) * PAGE, at, PAGE) for number in range(count)]


def test_lines_are_counted() -> None:
    def loop(count: int) -> None:
        for _ in range(count):
            pass

    one, two = (lines_run(partial(loop, count)) for count in (1000, 2000))
    assert two - one == 2000
    with pytest.raises(RuntimeError, match="more lines ran than the test allows"):
        lines_run(partial(loop, 1000), 900)


@pytest.mark.parametrize("few", COUNTS)
@pytest.mark.parametrize("word", ["find", "verdict"])
def test_work_grows_as_the_number_of_segments(base: bytes, tmp_path: Path, word: str, few: int) -> None:
    """Each segment is inside all segments before it."""
    assert measure_growth(base, tmp_path, word, few, lambda count: (make_nested(count, tail(base)), b"")) < 6


class CountingList(list[_Item]):
    """A list that counts the items that it returns."""

    given = 0

    def __iter__(self) -> Iterator[_Item]:
        for item in super().__iter__():
            self.given += 1
            yield item

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.given += 1
        return super().__getitem__(index)


def test_resident_bytes_are_summed_only_in_requested_regions(base: bytes, tmp_path: Path) -> None:
    """Sums begin at the requested region, not at the first segment."""
    path = hostile(
        tmp_path / "core", base, make_disjoint(MANY, tail(base)), hole=MANY * PAGE, data=[(0, b"\1" * PAGE), (8 * PAGE, bytes(PAGE))]
    )
    with open_core(str(path)) as core, path.open("rb") as file:
        parts = data_parts(file.fileno(), path.stat().st_size)
        assert parts
        # A core with section headers was not written by Linux. In a core by Linux, holes count as pages that were never written.
        core._data, core._trusted = Runs.of(parts), True
        extents = core._extents = CountingList(core._extents)
        held = [core.resident(region.start, region.end) for region in core.regions()]
        assert held.count(PAGE) >= 2
        assert extents.given < 8 * len(held)


@pytest.mark.parametrize("few", COUNTS)
@pytest.mark.parametrize("word", mark_matrix_except(["find", "verdict", "roots"], "verdict"))
def test_work_grows_as_the_number_of_threads(base: bytes, tmp_path: Path, word: str, few: int) -> None:
    """Each thread has a region that contains zeros."""
    assert (
        measure_growth(
            base, tmp_path, word, few, lambda count: (make_disjoint(count, tail(base)), threads(count, sp=FREE + 64, step=2 * PAGE))
        )
        < 6
    )


def test_mapped_files_that_overlap_are_left_out(tmp_path: Path) -> None:
    """Otherwise the headers of each file would be read, and a thousand files may claim one page."""
    rows = [(FREE + PAGE * number, FREE + PAGE * (number + 2), 0, f"/lib/lib{number}.so") for number in range(100)]
    notes = elfcore.files(rows)
    path = hostile(tmp_path / "core", elfcore.core([Load(FREE, 200 * PAGE, b"x" * PAGE)], [Task(7)]), notes=notes)
    with open_core(str(path)) as core:
        assert [region.name for region in core.regions() if region.name] == [row[3] for row in rows[::2]]
        assert any("50 of the mapped files overlap" in warning for warning in core.warnings)


def measure_growth(base: bytes, folder: Path, word: str, few: int, made: Callable[[int], tuple[list[Claim], bytes]]) -> float:
    """Return the factor by which the work for the added items grows if there are four times as many: 4 if it is linear,
    16 if it is quadratic. The first run also imports modules and is not counted."""
    work = []
    for count in (0, few, 4 * few):
        claims, notes = made(count)
        path = hostile(folder / str(count), base, claims, notes=notes, hole=count * PAGE, data=[(0, b"\1")] if count else ())
        if not work:
            run(word, path)
        work.append(lines_run(partial(run, word, path)))
    return (work[2] - work[0]) / (work[1] - work[0])


@pytest.mark.parametrize("bits", [46, 62])
@pytest.mark.parametrize("word", ["find", "verdict", "roots"])
def test_a_claimed_size_costs_nothing(base: bytes, tmp_path: Path, word: str, bits: int) -> None:
    plain = lines_run(lambda: run(word, hostile(tmp_path / "plain", base)))
    huge = hostile(tmp_path / "huge", base, [Claim(FREE, 1 << bits, tail(base), PAGE)], hole=PAGE)
    assert lines_run(lambda: run(word, huge), 2 * plain) < 1.2 * plain


def test_a_wrong_size_hides_no_memory(base: bytes, tmp_path: Path) -> None:
    """A segment with a wrong size does not hide the memory of the segments after it."""
    plain, huge = hostile(tmp_path / "plain", base), hostile(tmp_path / "huge", base, [Claim(FREE, 1 << 62)])
    with open_core(str(plain)) as one, open_core(str(huge)) as other:
        assert [region for region in other.regions() if region.start != FREE] == list(one.regions())
    assert run("find", huge)["groups"] == run("find", plain)["groups"]


@pytest.mark.parametrize("word", ["find", "verdict", "roots", "refs"])
def test_holes_are_not_read(base: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """A core of a terabyte with few pages of data. The bytes that are read are counted."""
    data = [(number << 33, b"\1" * PAGE) for number in range(64)]
    core = hostile(tmp_path / "core", base, [Claim(FREE, TERABYTE, tail(base), TERABYTE)], hole=TERABYTE, data=data)
    given = 0
    pieces, read = ExtentReader.pieces, ExtentReader.read

    def count_pieces(self: ExtentReader, start: int, end: int) -> Iterator[Piece]:
        nonlocal given
        for piece in pieces(self, start, end):
            given += len(piece.data) if piece.address >= FREE and piece.address < FREE + TERABYTE else 0
            if given > 1 << 26:
                raise TooMuch(f"{given:,} bytes of a hole")
            yield piece

    def count_read(self: ExtentReader, address: int, size: int) -> bytes:
        nonlocal given
        given += PAGE + size if FREE <= address < FREE + TERABYTE else 0
        if given > 1 << 26:
            raise TooMuch(f"{given:,} bytes of a hole")
        return read(self, address, size)

    monkeypatch.setattr(ExtentReader, "pieces", count_pieces)
    monkeypatch.setattr(ExtentReader, "read", count_read)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main([word, str(core), *([hex(FREE)] if word == "refs" else [])]) == 0
    assert 64 * PAGE < given < 1 << 26


def test_holes_change_no_result(base: bytes, tmp_path: Path) -> None:
    """A copy in which all pages of zeros are holes, and a copy without holes."""
    whole = hostile(tmp_path / "whole", base)
    sparse = tmp_path / "sparse"
    subprocess.run(["cp", "--sparse=always", whole, sparse], check=True)
    assert sparse.stat().st_blocks < whole.stat().st_blocks
    for word in ("find", "blocks", "roots", "verify", "caches"):
        assert run_json(word, sparse) == run_json(word, whole)


def run_json(word: str, path: Path) -> str:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        main([word, "--json", str(path)])
    return said.getvalue().replace(path.name, "core")


def test_parts_contain_all_data(tmp_path: Path) -> None:
    """Also in a core with unaligned offsets, as GDB writes it."""
    size, marks = 3 * SKIP, [0, 5, (1 << 20) + 3, (1 << 27) + 4095, SKIP + 8, 3 * SKIP - 1]
    path = tmp_path / "core"
    small = elfcore.core([Load(0x1000, PAGE, b"x" * PAGE)], [Task(1)])
    hostile(path, small, [Claim(FREE, size, tail(small) + 0x5B8, size)], hole=size + PAGE, data=[(0x5B8 + mark, b"\1") for mark in marks])
    with open_core(str(path)) as core:
        for start, end in ((FREE, FREE + size), (FREE + 3, FREE + (1 << 27) + 4096), (0, 1 << 64)):
            parts = [part for part in core.nonzero(start, end) if part.start >= FREE]
            assert all(a.end <= b.start for a, b in zip(parts, parts[1:]))
            assert sum(high - low for low, high in parts) < 4 << 20
            for mark in marks:
                assert any(low <= FREE + mark < high for low, high in parts) == (start <= FREE + mark < end)
            found = [piece for piece in nonzero_pieces(core, start, end) if piece.address >= FREE]
            ones = [piece.address + at for piece in found for at in range(len(piece.data)) if piece.data[at]]
            assert ones == [FREE + mark for mark in marks if start <= FREE + mark < end]
        given = [(piece.address, len(piece.data)) for piece in core.pieces(FREE, FREE + size)]
        assert sum(length for _, length in given) < SKIP + (1 << 20)  # all data except the two long holes
        assert core.read(FREE + SKIP + 1, 16) == bytes(7) + b"\1" + bytes(8)
        assert core.word(FREE + size // 2) == 0


def test_notes_of_zeros_take_no_memory(tmp_path: Path) -> None:
    small = elfcore.core([Load(0x1000, PAGE, b"x" * PAGE)], [Task(7)])
    path = hostile(tmp_path / "core", small, [Claim(0, 0, tail(small), 1 << 20, 0, 4)], hole=1 << 20)
    tracemalloc.start()
    try:
        with open_core(str(path)) as core:
            assert [thread.tid for thread in core.threads()] == [7]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_notes_that_many_headers_name_are_read_once(tmp_path: Path) -> None:
    small = elfcore.core([Load(0x1000, PAGE, b"x" * PAGE)], [Task(7)])
    mine = threads(20)
    claims = [Claim(0, 0, tail(small), len(mine), 0, 4)]
    once, often = (hostile(tmp_path / str(n), small, claims * n, hole=len(mine), data=[(0, mine)]) for n in (1, 200))
    plain = lines_run(lambda: open_core(str(once)).close())
    assert lines_run(lambda: open_core(str(often)).close()) < plain + 200 * 40
    with open_core(str(often)) as core:
        assert len(core.threads()) == 21


def test_bad_notes_are_counted_not_listed(tmp_path: Path) -> None:
    bad = elfcore.note(b"CORE", elfcore.NT_PRSTATUS, bytes(8)) * 1000
    path = hostile(tmp_path / "core", elfcore.core([Load(0x1000, PAGE, b"x" * PAGE)], [Task(7)]), notes=bad)
    with open_core(str(path)) as core:
        assert sum("NT_PRSTATUS" in warning for warning in core.warnings) == 8
        assert any("992 more" in warning for warning in core.warnings)


def test_bytes_in_many_segments_are_read_once(base: bytes, tmp_path: Path) -> None:
    size = 1 << 20
    claims = [Claim(FREE + 2 * size * number, size, tail(base), size) for number in range(500)]
    path = hostile(tmp_path / "core", base, claims, hole=size, data=[(0, b"\1" * size)])
    with open_core(str(path)) as core:
        assert sum(len(piece.data) for piece in core.pieces(FREE, FREE + 1000 * size)) == size
        assert sum(gap.end - gap.start for gap in core.unread) >= 499 * size


def test_work_grows_as_the_number_of_modules(base: bytes, tmp_path: Path) -> None:
    """Each module has a page of code and the name of a dynamic linker, so its regions are searched."""
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    image = (head + struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, PAGE, PAGE, PAGE)).ljust(PAGE, b"\1")
    work = []
    for count in (MANY // 8, MANY // 2):
        rows = [(claim.start, claim.start + PAGE, 0, "/x/ld.so.1") for claim in make_disjoint(count, 0)]
        data = [(number * PAGE, image) for number in range(count)]
        claims = [claim._replace(flags=5) for claim in make_disjoint(count, tail(base))]
        path = hostile(tmp_path / str(count), base, claims, notes=elfcore.files(rows), hole=count * PAGE, data=data)
        with open_core(str(path)) as core:
            assert len(core.modules()) >= count
            work.append(lines_run(partial(table_blocks, core)))
    assert work[1] < 6 * work[0]


def test_chunks_of_v8_are_searched_in_existing_data(base: bytes, tmp_path: Path) -> None:
    path = hostile(tmp_path / "core", base, [Claim(FREE, 16 * TERABYTE)])
    with open_core(str(path)) as core:
        assert lines_run(lambda: chunks(core, frozenset([FREE])), 1_000_000) > 0
