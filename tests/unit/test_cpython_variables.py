"""Names of the entries of CPython's dictionary tables, on handmade tables, intact and damaged."""

from __future__ import annotations

import random
import struct
from array import array
from types import SimpleNamespace
from typing import cast

import fake
import graphs
import pytest

from findleaks.allocators.memory import Memory
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.types import Types
from findleaks.runtimes.cpython.variables import GENERAL, UNICODE, variable

TABLE, SIZE = 0x10000, 256
STRINGS = {0x5000 + 64 * n: text for n, text in enumerate(("__name__", "shop.orders", "cache", "limit"))}
NAME, MODULE, CACHE, LIMIT = STRINGS
OBJECT = 0x9000


class Strings:
    """Return what Types.text returns for the strings above."""

    def text(self, address: int, length: int = -1, most: int = 200) -> str:
        text = STRINGS.get(address, "")
        return text if length in (-1, len(text)) else ""


KNOWN = cast("Types", Strings())


def table(entries: list[tuple[int, int]], kind: int = UNICODE, slots: int = 3, usable: int = 0) -> bytes:
    head = struct.pack("<QBBBBIQQ", 1, slots, slots, kind, 0, 0, usable, len(entries)) + b"\xff" * min(1 << slots, 64)
    rows = [struct.pack("<QQ", *pair) if kind == UNICODE else struct.pack("<QQQ", 77, *pair) for pair in entries]
    return (head + b"".join(rows)).ljust(SIZE, b"\0")


def describe(data: bytes, address: int, size: int = SIZE) -> str:
    return variable(Memory(fake.FakeTarget({TABLE: data})), KNOWN, TABLE, size, address)


FIRST = TABLE + 32 + 8
GLOBALS = [(NAME, MODULE), (CACHE, OBJECT), (LIMIT, OBJECT)]


def test_variable_of_a_module() -> None:
    data = table(GLOBALS)
    assert [describe(data, FIRST + 16 * n + 8) for n in range(4)] == [
        "Python variable: shop.orders.__name__",
        "Python variable: shop.orders.cache",
        "Python variable: shop.orders.limit",
        "",
    ]
    assert [describe(data, FIRST + 16 * n) for n in range(3)] == ["", "", ""], "keys were read as values"
    assert describe(data, FIRST + 8 + 1) == ""
    assert describe(data, TABLE + 8) == describe(data, TABLE + 24) == ""


def test_value_of_another_dictionary() -> None:
    data = table([(CACHE, OBJECT), (OBJECT, OBJECT)], GENERAL)
    assert describe(data, FIRST + 16) == 'value of "cache" in a Python dict'
    assert describe(data, FIRST + 24 + 16) == "", "a key that is no string was accepted"
    assert describe(data, FIRST + 8) == describe(data, FIRST) == ""


@pytest.mark.parametrize(
    "data",
    [
        table(GLOBALS, kind=2),
        table(GLOBALS, kind=3),
        table(GLOBALS, slots=2),
        table(GLOBALS, slots=60),
        table(GLOBALS, usable=3),  # six of eight entries, but at most five are permitted
        table(GLOBALS).replace(b"\x03\x03", b"\x03\x04", 1),  # indices of another width
    ],
)
def test_block_that_is_no_table(data: bytes) -> None:
    assert {describe(data, address) for address in range(TABLE, TABLE + SIZE, 4)} == {""}


def test_table_that_leaves_its_block_or_cannot_be_read() -> None:
    data = table(GLOBALS)
    assert describe(data, FIRST + 8, FIRST + 48 - TABLE) == "Python variable: shop.orders.__name__"
    assert describe(data, FIRST + 8, FIRST + 47 - TABLE) == ""
    assert describe(data, FIRST + 8, 40) == ""
    assert describe(data[:30], FIRST + 8) == describe(data[:24], FIRST + 8) == ""
    assert describe(data[:48], FIRST + 16 + 8) == ""


def test_any_bytes() -> None:
    source = random.Random(5)
    for _ in range(300):
        data = bytearray(table(GLOBALS, source.choice((GENERAL, UNICODE))))
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(64)] = source.randrange(256)
        for address in range(TABLE, TABLE + SIZE, 8):
            assert isinstance(describe(bytes(data), address), str)


@pytest.mark.parametrize("version", ["", "3", "x.y"])
def test_an_interpreter_of_unknown_version_has_no_names(version: str) -> None:
    """The version can be missing in a damaged core."""
    target = fake.FakeTarget({0x1000: bytes(64)})
    names = ObjectNames(target, graphs.native().blocks(target.arch, 16), cast("Types", SimpleNamespace(shift=0)), array("I", [0]), version)
    assert (names.name_object(0), names.name_member(0x1000)) == ("", "")
