"""The memory that the C engine gets as a CArray: it exists as long as something refers to it, and no function accepts
an address as a number."""

from __future__ import annotations

import ctypes
import gc
import weakref
from array import array

import graphs
import pytest

from findleaks.engine.native.declarations import SIGNATURES
from findleaks.engine.native.memory import CPiece, c_array, c_piece, c_pieces
from findleaks.target.base import Piece


class WatchedBytes(bytearray):
    """Bytes to which a weak reference can be made."""


def test_a_number_is_no_memory() -> None:
    """Every parameter, except for handles of objects that the C engine created, refuses an address and memory of another type."""
    words, halves = array("Q", [1]), array("I", [1, 2])
    refused = 0
    for _, arguments in SIGNATURES.values():
        for argument in arguments:
            if argument is ctypes.c_char_p or hasattr(argument, "contents"):
                for wrong in (words.buffer_info()[0], c_array(halves if argument is ctypes.POINTER(ctypes.c_uint64) else words)):
                    with pytest.raises(TypeError):
                        argument.from_param(wrong)
                refused += 1
    assert refused > 100


def test_passed_memory_is_kept() -> None:
    """The memory is released when the last copy that ctypes has made is deleted."""
    data = WatchedBytes(b"0123")
    alive = weakref.ref(data)
    made = c_piece(Piece(1, memoryview(data)))
    del data
    several = (CPiece * 2)(made, made)
    del made
    one = several[1]
    del several
    again = (CPiece * 1)(one)
    del one
    at = again[0].data
    del again
    gc.collect()
    assert alive() == b"0123" and bytes(at[:4]) == b"0123"
    first = at.contents
    del at
    gc.collect()
    assert alive() is not None and first.value == ord("0")
    del first
    gc.collect()
    assert alive() is None


def test_a_copy_of_a_read_only_view_stays() -> None:
    """If the copy were released before the C engine reads it, other objects could use its memory."""
    words = array("Q", range(1, 5000)).tobytes()
    engine, piece = graphs.native(), Piece(0x1000, memoryview(words))
    for _ in range(20):
        assert len(engine.search(piece, 1, 5000)) == 4999
        several, count = c_pieces([piece] * 3)
        noise = [bytearray(len(words)) for _ in range(3)]
        assert count == 3 and all(bytes(one.data[: one.length]) == words for one in several)
        del noise


def test_memory_in_use_cannot_be_resized() -> None:
    for buffer in (array("Q", [1]), array("I", [1]), array("B", [1]), bytearray(1)):
        held = c_array(buffer)
        with pytest.raises(BufferError):
            buffer.append(2)
        del held
        buffer.append(2)
        assert len(buffer) == 2
    for empty in (array("Q"), bytearray()):
        assert len(c_array(empty)) == 0
    with pytest.raises(KeyError):
        c_array(array("d", [1.0]))
