"""CArray that the kernel is given: it stays for as long as anything refers to it, and no function takes an address that is a number."""

from __future__ import annotations

import ctypes
import gc
import re
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest

from findleaks.engine.kernel.library import SIGNATURES, CRules, CRunSearch, CWords
from findleaks.engine.kernel.memory import CPiece, CRange, c_array, c_piece, c_pieces
from findleaks.target.base import Piece

SOURCES = Path(__file__).parents[2] / "common/kernel"
MADE_BY_THE_KERNEL = ("blocks", "graph", "grouping", "dominators", "fields", "tree_walk", "link_walk", "records", "counting")
WORDS = ("uint64_t", "run", "group", "cache", "slab", "user", "chain", "block_total")  # structures of nothing but words
NUMBERS = {
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_ubyte,
    "unsigned": ctypes.c_uint,
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
}
POINTERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(MADE_BY_THE_KERNEL, (ctypes.c_void_p,)),
    **dict.fromkeys(WORDS, (ctypes.POINTER(ctypes.c_uint64),)),
    "range": (ctypes.POINTER(CRange), ctypes.POINTER(ctypes.c_uint64)),
    "uint32_t": (ctypes.POINTER(ctypes.c_uint32),),
    "uint8_t": (ctypes.POINTER(ctypes.c_ubyte), ctypes.c_char_p),
    "bool": (ctypes.POINTER(ctypes.c_bool),),
    "piece": (ctypes.POINTER(CPiece),),
    "words": (ctypes.POINTER(CWords),),
    "row_rules": (ctypes.POINTER(CRules),),
    "run_search": (ctypes.POINTER(CRunSearch),),
    "void*": (ctypes.POINTER(ctypes.c_void_p),),
    "uint8_t*": (ctypes.POINTER(ctypes.c_void_p),),
    "range*": (ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),),
}


class Watched(bytearray):
    """Bytes that a weak reference can be had of."""


def functions() -> Iterator[tuple[str, str, list[str]]]:
    """Name, type, and the parameters' types of each function that the kernel exports; without `const` and spaces."""
    for source in SOURCES.glob("*.c"):
        for made, name, parameters in re.findall(r"^API ([^({]*?)(\w+)\(([^)]*)\)\s*\{", source.read_text(), re.MULTILINE):
            types = [re.sub(r"\bconst\b|\s|\w+$", "", one) for one in parameters.split(",") if one != "void"]
            yield name, re.sub(r"\bconst\b|\s", "", made), types


def test_signatures_are_those_of_the_sources() -> None:
    found = {name: (made, types) for name, made, types in functions()}
    assert found.keys() == SIGNATURES.keys()
    for name, (made, types) in found.items():
        result, arguments = SIGNATURES[name]
        assert result is (None if made == "void" else ctypes.c_void_p if made.endswith("*") else NUMBERS[made]), name
        assert len(arguments) == len(types), name
        for argument, kind in zip(arguments, types):
            if (name, kind) == ("fl_free", "void*"):
                assert argument is ctypes.c_void_p
            elif kind.endswith("*"):
                assert argument in POINTERS[kind[:-1]], (name, kind)
            else:
                assert argument is NUMBERS[kind], (name, kind)


def test_a_number_is_no_memory() -> None:
    """Every parameter but the handles of what the kernel made itself refuses an address, and memory of another type."""
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


def test_what_is_passed_stays() -> None:
    """Through every copy that ctypes makes, and no longer."""
    data = Watched(b"0123")
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
    """Dropped before the kernel reads it, its memory would be another's by then."""
    words = array("Q", range(1, 5000)).tobytes()
    engine, piece = graphs.kernel(), Piece(0x1000, memoryview(words))
    for _ in range(20):
        assert len(engine.search(piece, 1, 5000)) == 4999
        several, count = c_pieces([piece] * 3)
        noise = [bytearray(len(words)) for _ in range(3)]
        assert count == 3 and all(bytes(one.data[: one.length]) == words for one in several)
        del noise


def test_what_is_in_use_keeps_its_size() -> None:
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
