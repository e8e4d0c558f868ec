"""Names of CPython's objects whose words are damaged."""

from __future__ import annotations

import struct
from array import array
from typing import cast

import fake
import graphs
import pytest

from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.types import Types

TRACEBACK, LIST, SIZE = 0x1000, 0x1040, 64
TYPES = {0x5000: "traceback", 0x5100: "list"}


class Known:
    """The two types, as class Types describes them."""

    shift, flags, offsets = 0, (0, 1 << 25), (0, 0)
    names = tuple(TYPES.values())

    def __len__(self) -> int:
        return len(self.names)

    def name(self, number: int) -> str:
        return self.names[number]

    plain_name = name

    def number(self, address: int) -> int:
        return list(TYPES).index(address) if address in TYPES else -1


def name_traceback(frame: int) -> str:
    """Return the name of a traceback with this tb_frame. The last block has a list of 20 elements."""
    data = struct.pack("<8Q8Q", 1, 0x5000, 0, frame, 7 << 32, 0, 0, 0, 1, 0x5100, 20, 0, 0, 0, 0, 0)
    target = fake.FakeTarget({TRACEBACK: data})
    blocks = graphs.native().blocks(target.arch, 16)
    blocks.append(array("Q", [TRACEBACK, LIST]), array("Q", [SIZE, SIZE]), bytes(2))
    blocks.seal()
    return ObjectNames(target, blocks, cast("Types", Known()), array("I", [0, 1]), "3.11.2").name_object(0)


@pytest.mark.parametrize("frame", [TRACEBACK, LIST, 0, 8, 0xFFFF_FFFF_FFFF_FFF0])
def test_a_traceback_without_a_frame_has_no_name(frame: int) -> None:
    """The word may have the address of the traceback itself, of another object, or of no object."""
    assert name_traceback(frame) == ""
