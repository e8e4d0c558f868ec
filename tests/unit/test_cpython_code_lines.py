"""Line tables of code objects, compared with how this interpreter reads its own library, and with the example in CPython's sources."""

from __future__ import annotations

import argparse
import asyncio.base_events
import inspect
import random
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from types import CodeType

from findleaks.runtimes.cpython.code_objects import _read_line_numbers, _read_lines, _read_locations

LIBRARY = (argparse, asyncio.base_events, inspect, random, subprocess, typing)
READERS: tuple[Callable[[bytes, int], Iterator[tuple[int, int, int]]], ...] = (_read_locations, _read_lines, _read_line_numbers)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes(one)


def test_lines_of_the_library() -> None:
    read = _read_locations if sys.version_info >= (3, 11) else _read_lines if sys.version_info >= (3, 10) else _read_line_numbers
    compared = 0
    for module in LIBRARY:
        for code in codes(compile(inspect.getsource(module), module.__name__, "exec")):
            table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
            found = {
                at: line for start, end, line in read(table, code.co_firstlineno) for at in range(start, min(end, len(code.co_code)), 2)
            }
            if sys.version_info >= (3, 10):
                expected = {at: line or 0 for start, end, line in code.co_lines() for at in range(start, end, 2)}
                assert found == expected, code
            compared += len(found)
    assert compared > 10_000


def test_line_numbers_of_3_9() -> None:
    """The example of Objects/lnotab_notes.txt: offsets 0, 6, 50, 350 and 361 are on lines 1, 2, 7, 207 and 208."""
    table = bytes([6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1])
    found = list(_read_line_numbers(table, 1))
    assert [next(line for start, end, line in found if start <= at < end) for at in (0, 5, 6, 50, 349, 350, 361, 999)] == [
        *(1, 1, 2, 7, 7, 207, 208, 208)
    ]


def test_lines_of_3_10() -> None:
    """Instructions without a line, and lines before the first."""
    assert list(_read_lines(bytes([4, 1, 6, 128, 2, 254]), 10)) == [(0, 4, 11), (4, 10, 0), (10, 12, 9)]


def test_damaged_tables() -> None:
    chance = random.Random(3)
    for size in range(200):
        for read in READERS:
            entries = list(read(chance.randbytes(size), 1))
            assert len(entries) <= size + 1
            assert all(start <= end for start, end, _ in entries)
