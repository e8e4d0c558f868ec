"""Which Java objects refer to native memory, and how they are named."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Optional

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.errors import Interrupted
from findleaks.runtimes.base import Holders
from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.holders import find_example, list_referrers
from findleaks.runtimes.jvm.object_graph import JavaGraph
from findleaks.target.base import Range

LONGS, BUFFER, FILE = "long[]", "java.nio.DirectByteBuffer", "App$File"
NAMES = [BUFFER, BUFFER, LONGS, FILE, BUFFER, LONGS, FILE]
OBJECTS = [
    (0x100, 40, 2),
    (0x200, 8000, 2),
    (0x3000, 24, 3),
    (0x4000, 24, 3),
    (0x5000, 24, 3),
    (0x6000, 32, 0),
    (0x6100, 64, 1),
    (0x7000, 9000, 5),
]
"""Address, size and type of each object. The last object is garbage."""


@pytest.mark.parametrize(("name", "address"), [(LONGS, 0x200), (FILE, 0x4000), ("App", None)])
def test_example(name: str, address: Optional[int]) -> None:
    """The example is live, and one of the largest objects."""
    columns = (array(code, values) for code, values in zip("QII", zip(*OBJECTS)))
    assert find_example(Holders(*columns, NAMES, owning=1, garbage=4), name) == address


HEAP, SIZE = 0x100000, 4 << 20
MEMORY = [Range(0x9000_0000 + 0x1000 * number, 0x9000_0800 + 0x1000 * number) for number in range(9)]


@pytest.mark.parametrize("engine", [graphs.native(), graphs.pure()], ids=["native", "pure"])
def test_referrers(engine: Engine) -> None:
    """Two objects with a word that refers to MEMORY, one of which is large; two with words that refer to gaps between its ranges; and two
    that are garbage and have no root, of which only the buffer counts."""
    last = HEAP + 0x10000 + 2 * SIZE
    objects = [(HEAP, 32, 0), (HEAP + 64, 32, 0), (HEAP + 0x10000, SIZE, 1), (HEAP + 0x10000 + SIZE, SIZE, 1)]
    objects += [(last, 32, NO_ROOT), (last + 32, 32, NO_ROOT)]
    values = (MEMORY[0].start, MEMORY[0].end, MEMORY[8].end - 1, MEMORY[8].end, MEMORY[1].start, MEMORY[1].start)
    java: Any = SimpleNamespace(index_of=lambda address: address, name_of={last: BUFFER, last + 32: FILE}.get)
    target = FakeTarget({HEAP: bytes(last + 64 - HEAP)})
    for (start, size, _), value in zip(objects, values):
        target.write_word(start + size - 8, value)
    target.write_word(objects[2][0] + 8, MEMORY[3].end)
    holders = Holders(*(array(code, values) for code, values in zip("QQI", zip(*objects))), [FILE, LONGS], garbage=2)
    found = list_referrers(holders, java, engine, Memory(target), MEMORY)
    assert [(one.type, one.objects, one.garbage, one.example) for one in found] == [
        (LONGS, 1, 0, HEAP + 0x10000),
        (FILE, 1, 0, HEAP),
        (BUFFER, 0, 1, 0),
    ]
    target.stop_after(6)  # stop after four objects and the first slices of a large one
    with pytest.raises(Interrupted):
        list_referrers(holders, java, engine, Memory(target), MEMORY)


class FakeGraph(JavaGraph):
    """Objects of one class, given as {index: indices of its referrers}."""

    def __init__(self, owners: dict[int, Sequence[int]]) -> None:
        self._owners = owners

    def referrers(self, index: int) -> Iterator[int]:
        return iter(self._owners[index])

    def is_live(self, index: int) -> bool:
        return True

    def _class_of(self, index: int) -> Any:
        return SimpleNamespace(kind=FIXED)

    def _variable_with(self, owner: int, value: int) -> str:
        return f"{owner}.field"


@pytest.mark.parametrize(
    ("owners", "name"),
    [
        ({0: [0]}, ""),
        ({0: [1], 1: [0]}, "1.field"),
        ({0: [1], 1: [0, 2], 2: [1]}, "2.field → 1.field"),
        ({0: [1], 1: [2], 2: [0]}, "2.field → 1.field"),
    ],
)
def test_name_of_objects_that_refer_to_each_other(owners: dict[int, Sequence[int]], name: str) -> None:
    """Each object occurs once in the name."""
    assert FakeGraph(owners).name_variable(0) == name
