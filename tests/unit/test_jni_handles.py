"""Test which handles in lists of JNI handles are in use, and how damaged lists are read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from jvmimage import HEAP, OBJECTS, STATICS, THREADS, Image

from findleaks.engine.reference.engine import PureEngine
from findleaks.runtimes.jvm.jni_handles import handles, released_handles, stale_handles
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

ACTIVE, FREE, TOP, NEXT, HANDLES = 0x200, 0x208, 256, 264, 32
BLOCKS = [OBJECTS + 0x8000 + 0x200 * number for number in range(4)]
OBJECT = OBJECTS + 0xF000


def make_tables(used: Sequence[tuple[int, int]], free: Sequence[tuple[int, int]] = ()) -> Tables:
    """Return the tables of a JVM with one thread, its blocks in use and its free blocks. An item has the number of handles in use, and the
    index of the next block or -1."""
    image = Image("Serial", [(0, 0, 0)] * 4, [(0, 0, 0)])
    image.fields.update({("JNIHandleBlock", "_handles"): 0, ("JNIHandleBlock", "_top"): TOP, ("JNIHandleBlock", "_next"): NEXT})
    image.fields["JavaThread", "_active_handles"] = ACTIVE
    for block, (top, following) in zip(BLOCKS, [*used, *free]):
        image.words(block, *[OBJECT] * HANDLES, top, BLOCKS[following] if following >= 0 else 0)
    image.words(THREADS + 0x1000 + ACTIVE, BLOCKS[0], BLOCKS[len(used)] if free else 0)
    target = image.target()
    return Tables(target, target.modules()[0])


def make_words(block: int, first: int = 0) -> list[int]:
    return list(range(BLOCKS[block] + 8 * first, BLOCKS[block] + 8 * HANDLES, 8))


def test_handles_after_a_block_that_is_not_full() -> None:
    assert list(stale_handles(make_tables([(HANDLES, 1), (3, 2), (HANDLES, -1)]))) == [*make_words(1, 3), *make_words(2)]


def test_handles_in_use() -> None:
    found = list(handles(make_tables([(HANDLES, 1), (3, 2), (HANDLES, -1)]), BLOCKS[0]))
    assert [place for place, _ in found] == [*make_words(0), *make_words(1)[:3]] and {one for _, one in found} == {OBJECT}


def test_free_blocks() -> None:
    assert list(stale_handles(make_tables([(HANDLES, -1)], [(HANDLES, 2), (0, -1)]))) == [*make_words(1), *make_words(2)]


def test_lists_with_damage() -> None:
    """A block may refer to a previous block of its list. A block with an impossible number of handles is not read."""
    assert list(stale_handles(make_tables([(1, 1), (0, 0)]))) == [*make_words(0, 1), *make_words(1)]
    assert list(stale_handles(make_tables([(HANDLES, 1), (HANDLES + 1, 2), (0, -1)]))) == []


VARIABLE, SIZE, OLD_CONTENT = STATICS + 0x7000, 312, 0x5A5A5A5A5A5A5A5A


@pytest.mark.parametrize(
    ("firsts", "sizes", "count"),
    [
        ((HEAP + 8, OLD_CONTENT), (SIZE, SIZE), 2),
        ((OLD_CONTENT, HEAP + 8), (SIZE + 8, SIZE + 8), 2),
        ((OLD_CONTENT, OLD_CONTENT), (SIZE, SIZE), 0),  # another structure of the same size
        ((HEAP + 8, HEAP + 8), (SIZE, 4096), 1),
        ((HEAP + 8, HEAP + 8), (4096, SIZE), 0),
    ],
)
def test_blocks_of_threads_that_have_ended(firsts: tuple[int, int], sizes: tuple[int, int], count: int) -> None:
    """A variable of libjvm refers to a list of two blocks. The JVM does not clear new blocks, so that unused handles have old content."""
    image = Image("Serial", [(0, 0, 0)] * 4)
    image.fields.update({("JNIHandleBlock", "_handles"): 0, ("JNIHandleBlock", "_top"): TOP, ("JNIHandleBlock", "_next"): NEXT})
    image.sizes["JNIHandleBlock"] = SIZE
    for block, first, following in zip(BLOCKS, firsts, (BLOCKS[1], 0)):
        image.words(block, first, *[OLD_CONTENT] * (HANDLES - 1), 0, following)
    image.words(VARIABLE, BLOCKS[0])
    target = image.target()
    known = dict(zip(BLOCKS, sizes))
    blocks = SimpleNamespace(find_all=lambda addresses: (None, array("Q", [known.get(one, 0) for one in addresses])))
    directory: Any = SimpleNamespace(ranges=lambda: [Range(BLOCKS[0], BLOCKS[1] + SIZE)], blocks=blocks)
    tables = Tables(target, target.modules()[0])
    found = released_handles(tables, PureEngine(target.arch), [Range(VARIABLE, VARIABLE + 8)], directory)
    assert list(found) == [Range(block, block + 8 * HANDLES) for block in BLOCKS[:count]]
