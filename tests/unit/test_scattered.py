"""Core files that are mostly holes: the amount that is read depends on the data, not on the length of the file."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from elfcore import Load, Task, core

from findleaks.target import reader
from findleaks.target.base import Range
from findleaks.target.core import open_core
from findleaks.target.residency.holes import is_scattered, without_long_holes

PAGE = 4096
MIB = 1 << 20


def make_pages(count: int, distance: int) -> list[Range]:
    return [Range(at * distance, at * distance + PAGE) for at in range(count)]


@pytest.mark.parametrize("distance", [MIB // 2, MIB, 1 << 30])
def test_holes_between_scattered_pages_are_not_read(distance: int) -> None:
    assert without_long_holes(make_pages(1000, distance)).total == 1000 * PAGE


def test_holes_that_are_less_than_the_data_are_read_as_zeros() -> None:
    found = without_long_holes([Range(0, 4 * MIB), Range(4 * MIB + PAGE, 6 * MIB), Range(8 * MIB, 9 * MIB)])
    assert list(found) == [Range(0, 6 * MIB), Range(8 * MIB, 9 * MIB)]


def test_scattered_files() -> None:
    assert is_scattered(make_pages(10, MIB), 10 * MIB)
    assert not is_scattered([Range(0, 10 * MIB)], 100 * MIB)  # one large part
    assert not is_scattered(make_pages(10, 2 * PAGE), 19 * PAGE)  # almost no holes
    assert not is_scattered([], 0)


@pytest.mark.parametrize("step", [256, 1024])
def test_pieces_follow_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """One gigabyte, or four, with a page of data every `step` pages: only the data, and small gaps between data, are read."""
    count = 1000
    size, start = count * step * PAGE, 0x100000000
    head = core([Load(start, PAGE, b"\1" * PAGE)], [Task(1)])
    # The program header of the segment contains the size of the memory, in the file and in the process.
    offset = int.from_bytes(head[64 + 56 + 8 : 64 + 56 + 16], "little")
    made = bytearray(head[:offset])
    made[64 + 56 + 32 : 64 + 56 + 48] = size.to_bytes(8, "little") * 2
    path = tmp_path / "core"
    with open(path, "wb") as file:
        file.write(made)
        for at in range(count):
            file.seek(offset + at * step * PAGE)
            file.write(b"\2" * PAGE)
        file.truncate(offset + size)
    advice = []

    class Map(mmap.mmap):
        def madvise(self, option: int, *rest: int) -> None:
            advice.append(option)
            super().madvise(option, *rest)

    monkeypatch.setattr(reader.mmap, "mmap", Map)
    target = open_core(str(path))
    assert mmap.MADV_RANDOM in advice
    for margin, most in ((0, PAGE), (PAGE, 3 * PAGE)):
        read = list(target.nonzero(start, start + size, margin))
        assert sum(end - low for low, end in read) <= count * most
        assert all(any(low <= start + at * step * PAGE < end for low, end in read[at : at + 1]) for at in range(count))
    target.close()
