"""Records of weak references in synthetic GObjects, also in damaged ones."""

from __future__ import annotations

import struct

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.runtimes.glib import weak
from findleaks.target.base import Module, Range

LIBRARY = Module("/lib/libgobject-2.0.so.0", 0x7F0000000000, 0x7F0000000000, 0x7F0000010000)
INSTANCES, DATA, RECORDS = 0x100000, 0x200000, 0x300000
COUNT, STEP = 3000, 64


def process() -> FakeTarget:
    """Return a process with COUNT instances. Each has a GData of two elements in a block of STEP bytes. The destroy functions of the first
    element are in LIBRARY."""
    numbers = range(COUNT)
    instances = b"".join(struct.pack("<3Q", 1, 1, (DATA + STEP * number) | 2).ljust(STEP, b"\0") for number in numbers)
    own, other = LIBRARY.start + 16, LIBRARY.end
    data = b"".join(struct.pack("<II6Q", 2, 2, 7, RECORDS + 16 * at, own, 8, RECORDS + 16 * at, other).ljust(STEP, b"\0") for at in numbers)
    records = b"".join(struct.pack("<2Q", INSTANCES + STEP * number, 5) for number in numbers)
    return FakeTarget({INSTANCES: instances, DATA: data, RECORDS: records})


def find(target: FakeTarget, engine: Engine, toggles: bool = False) -> list[Range]:
    instances = range(INSTANCES, INSTANCES + STEP * COUNT, STEP)
    blocks = engine.blocks(graphs.X86_64, 16)
    blocks.append(range(DATA, DATA + STEP * COUNT, STEP), [STEP] * COUNT, [State.IN_USE] * COUNT)
    blocks.seal()
    texts = {7: "a key", 8: weak.TOGGLES if toggles else "another key"}
    return list(weak.find_record_words(Memory(target), engine, blocks, instances, LIBRARY, texts.__getitem__))


def word(number: int) -> Range:
    return Range(RECORDS + 16 * number, RECORDS + 16 * number + 8)


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_records(engine: Engine) -> None:
    target = process()
    assert find(target, engine) == [word(number) for number in range(COUNT)]
    target.write_word(INSTANCES + 16, 3)  # an instance without data, only with flags
    target.write_word(INSTANCES + STEP + 16, 0x1234_5678_9ABC_DEF0)  # unreadable data
    target.write_word(DATA + 2 * STEP, 1 << 20)  # more elements than the reader accepts
    target.write_word(RECORDS + 16 * 3, INSTANCES)  # the record of another instance
    assert find(target, engine) == [word(number) for number in range(4, COUNT)]


def test_toggle_references() -> None:
    """The record of toggle references has a destroy function of another library, and is known by its key."""
    target = process()
    for number in range(COUNT):
        target.write_word(DATA + STEP * number + 24, 0)  # the function of the first element
    assert not find(target, graphs.native())
    assert find(target, graphs.native(), toggles=True) == [word(number) for number in range(COUNT)]


def test_unused_elements() -> None:
    """A word after the elements of a list, which refers to an instance, is stale. Words after the block are not."""
    target = process()
    target.write_word(DATA + 56, INSTANCES + STEP)
    target.write_word(DATA + STEP + 4, 200)  # more places than the block has
    target.write_word(DATA + 2 * STEP + 56, INSTANCES + 8)  # not the start of an instance
    found = set(find(target, graphs.native())) - {word(number) for number in range(COUNT)}
    assert found == {Range(DATA + 56, DATA + 64)}


def test_lists_that_overlap() -> None:
    """Each instance refers to one list with as many elements as the reader accepts. The list is read once."""
    target = process()
    for number in range(COUNT):
        target.write_word(INSTANCES + STEP * number + 16, DATA)
    target.write_word(DATA, weak.MOST_DATA)
    assert find(target, graphs.native()) == [word(0)]


def test_interrupted() -> None:
    target = process()
    target.stop_after(2)
    with pytest.raises(Interrupted):
        find(target, graphs.native())
