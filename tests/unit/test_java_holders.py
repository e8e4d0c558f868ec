"""Which Java object findleaks chooses as the example of a class whose objects refer to native memory."""

from __future__ import annotations

from array import array
from typing import Optional

import pytest

from findleaks.runtimes.base import Holders
from findleaks.runtimes.jvm.holders import find_example

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


@pytest.mark.parametrize(("name", "address"), [(LONGS, 0x200), (FILE, 0x4000), (BUFFER, None), ("App", None)])
def test_example(name: str, address: Optional[int]) -> None:
    """The example is live, and one of the largest objects. A buffer is not an example, because its Deallocator owns the memory."""
    columns = (array(code, values) for code, values in zip("QII", zip(*OBJECTS)))
    assert find_example(Holders(*columns, NAMES, owning=1, garbage=4), name) == address
