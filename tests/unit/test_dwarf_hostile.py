"""Damaged and forged debug information: both engines read the same tables, in bounded time and memory."""

from __future__ import annotations

import random
import subprocess
import time
from array import array
from pathlib import Path

import graphs
import pytest
from typed import open_sources

from findleaks.debuginfo.type_table import Kind, TypeTable
from findleaks.engine.dwarf_sources import SPLIT, Source, TypeReader

PROGRAMS = Path(__file__).parents[1] / "programs"
MUTATIONS = 60


def read(sources: list[Source], pure: bool) -> tuple[list[array[int]], bool]:
    """Return the columns, and whether reading ended early."""
    reader: TypeReader = (graphs.pure() if pure else graphs.native()).type_reader()
    for source in sources:
        reader.add(source)
        while reader.read(1 << 16) >= 0:
            pass
    while reader.find_origins(1 << 16):
        pass
    while reader.merge() < 1.0:
        pass
    return reader.columns(), reader.incomplete


def read_with_both(sources: list[Source]) -> TypeTable:
    """Check that both engines read the same table, and return it."""
    native, pure = read(sources, False), read(sources, True)
    assert native == pure
    return TypeTable.of(8, native[0])


@pytest.fixture(scope="module", params=["-gdwarf-2", "-gdwarf-5 -O2"])
def intact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    program = tmp_path_factory.mktemp("hostile") / "types"
    subprocess.run(["gcc", *request.param.split(), "-o", program, PROGRAMS / "type_layouts.c"], check=True)
    return [
        source._replace(**{name: bytes(getattr(source, name)) for name in Source._fields[:9]}) for source in open_sources(program).main()
    ]


def test_damaged_bytes(intact: list[Source]) -> None:
    """Change, cut off or repeat bytes of each section."""
    (source,), draw = intact, random.Random(7)
    sections = [name for name in Source._fields[:9] if len(getattr(source, name))]
    counts = set()
    for number in range(MUTATIONS):
        damaged = source
        for name in draw.sample(sections, 1 + number % 2):
            data = bytearray(getattr(source, name))
            for _ in range(draw.choice((1, 2, 8, 64))):
                data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            if not number % 5:
                del data[draw.randrange(len(data)) :]
            damaged = damaged._replace(**{name: bytes(data)})
        counts.add(len(read_with_both([damaged._replace(flags=SPLIT * (number % 3 == 0))])))
    assert len(counts) > 5  # the damage has an effect


def encode_leb(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def encode_unit(entries: bytes, version: int = 5) -> bytes:
    """Return a unit with 8-byte addresses, whose abbreviations are at offset 0."""
    head = b"\x05\0\x01\x08" + bytes(4) if version == 5 else bytes([version, 0]) + bytes(4) + b"\x08"
    return (len(head) + len(entries)).to_bytes(4, "little") + head + entries


def encode_abbreviation(code: int, tag: int, children: bool, *attributes: tuple[int, int]) -> bytes:
    each = b"".join(encode_leb(name) + encode_leb(form) for name, form in attributes)
    return encode_leb(code) + encode_leb(tag) + bytes([children]) + each + b"\0\0"


FIRST = 12 + 1  # offset of the second entry of a unit: the first entry is one byte long
UNIT, STRUCT, MEMBER, TYPEDEF, POINTER, ARRAY, RANGE, NAMELESS, BASE, CLASS, ALIAS, DEEP = range(1, 13)
ABBREVIATIONS = b"".join((
    encode_abbreviation(UNIT, 0x11, True),
    encode_abbreviation(STRUCT, 0x13, True, (0x03, 0x08), (0x0B, 0x07)),  # name, size of 8 bytes
    encode_abbreviation(MEMBER, 0x0D, False, (0x03, 0x08), (0x49, 0x13), (0x38, 0x0F)),  # name, type, offset
    encode_abbreviation(TYPEDEF, 0x16, False, (0x03, 0x08), (0x49, 0x13)),
    encode_abbreviation(POINTER, 0x0F, False, (0x49, 0x13)),
    encode_abbreviation(ARRAY, 0x01, True, (0x49, 0x13)),
    encode_abbreviation(RANGE, 0x21, False, (0x37, 0x07)),  # count of 8 bytes
    encode_abbreviation(NAMELESS, 0x16, False, (0x49, 0x13)),
    encode_abbreviation(BASE, 0x24, False, (0x03, 0x08), (0x0B, 0x0B)),
    encode_abbreviation(CLASS, 0x1C, False, (0x49, 0x13), (0x38, 0x0F)),  # a base class
    encode_abbreviation(ALIAS, 0x13, False, (0x31, 0x13)),  # an instance of another type
    encode_abbreviation(DEEP, 0x39, True, (0x03, 0x08)),  # a namespace
    b"\0",
))  # fmt: skip


def read_table(entries: bytes) -> TypeTable:
    return read_with_both([Source(encode_unit(bytes([UNIT]) + entries + b"\0"), ABBREVIATIONS)])


def encode_word(number: int) -> bytes:
    return number.to_bytes(4, "little")


def test_cycles_of_typedefs_and_aliases() -> None:
    entries = bytes([TYPEDEF]) + b"a\0" + encode_word(FIRST + 7) + bytes([TYPEDEF]) + b"b\0" + encode_word(FIRST)
    entries += (
        bytes([ALIAS]) + encode_word(FIRST + 19) + bytes([ALIAS]) + encode_word(FIRST + 14) + bytes([POINTER]) + encode_word(FIRST + 14)
    )
    table = read_table(entries)
    (first,) = [number for number in range(len(table)) if table.name(number) == "a"]
    assert table.bare(first) == 1
    assert table.sizes[first] == 0
    pointer = next(number for number in range(len(table)) if table.kinds[number] == Kind.POINTER)
    assert table.targets[pointer] == 1  # aliases that refer to each other are no type


def test_a_nameless_cycle_has_a_name_of_bounded_length() -> None:
    """Pointers to themselves, and arrays of themselves."""
    table = read_table(
        bytes([POINTER])
        + encode_word(FIRST)
        + bytes([ARRAY])
        + encode_word(FIRST + 5)
        + bytes([RANGE])
        + (1 << 40).to_bytes(8, "little")
        + b"\0"
    )
    assert all(len(table.name(number)) < 4000 for number in range(len(table)))
    array_type = next(number for number in range(len(table)) if table.kinds[number] == Kind.ARRAY)
    assert table.sizes[array_type] == 0


def test_sizes_that_exceed_memory() -> None:
    """An array of 2 ** 61 structs of 2 ** 60 bytes, and a struct that contains itself."""
    entries = (
        bytes([STRUCT])
        + b"s\0"
        + (1 << 60).to_bytes(8, "little")
        + bytes([MEMBER])
        + b"m\0"
        + encode_word(FIRST)
        + encode_leb((1 << 64) - 8)
        + b"\0"
    )
    entries += bytes([ARRAY]) + encode_word(FIRST) + bytes([RANGE]) + (1 << 61).to_bytes(8, "little") + b"\0"
    table = read_table(entries)
    (struct,) = table.find("s")
    assert table.sizes[struct] == 1 << 60
    assert table.fields_of(struct)[0].offset == (1 << 64) - 8
    assert [table.sizes[number] for number in range(len(table)) if table.kinds[number] == Kind.ARRAY] == [0]


def test_entries_nested_too_deeply() -> None:
    """The damaged unit ends early, and the next unit is read."""
    deep = encode_unit(bytes([UNIT]) + (bytes([DEEP]) + b"n\0") * 5000)
    after = encode_unit(bytes([UNIT]) + bytes([BASE]) + b"after\0\x04\0")
    for sources in ([Source(deep + after, ABBREVIATIONS)],):
        native = read(sources, False)
        assert native[1]
        assert native == read(sources, True)
        names = [TypeTable.of(8, native[0]).name(number) for number in range(len(native[0][1]))]
        assert "after" in names


def test_work_is_bounded_by_the_size(intact: list[Source]) -> None:
    """Two cases: many small units share one large table of abbreviations; many names overlap."""
    large = b"".join(encode_abbreviation(code, 0x24, False, (0x03, 0x0E)) for code in range(2, 60000))
    small = [encode_unit(b"\x05\0\0\0\0"[:2], 4) + encode_unit(b"\x02\0\0\0\0", 5) for _ in range(4000)]
    names = bytes([0x41]) * (1 << 20)
    begin = time.process_time()
    columns, incomplete = read([Source(b"".join(small), large + b"\0", names)], False)
    assert incomplete
    assert time.process_time() - begin < 20
    assert len(columns[0]) < 1 << 26
    assert not read(intact, False)[1]


def test_tables_from_a_damaged_cache_are_bounded() -> None:
    """Columns are shorter or longer than declared. No memory outside of them is read."""
    columns, _ = read([Source(encode_unit(bytes([UNIT, BASE]) + b"int\0\x04\0"), ABBREVIATIONS)], False)
    for number in range(19):
        damaged = list(columns[:19])
        damaged[number] = damaged[number][: len(damaged[number]) // 2]
        reader = graphs.native().type_reader()
        reader.add_table(damaged, 0, 0, len(damaged[1]))
        while reader.merge() < 1.0:
            pass
        assert len(reader.columns()[1]) <= len(columns[1])
