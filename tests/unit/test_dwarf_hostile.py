"""Damaged and forged debug information: both engines read the same tables, in bounded time and memory."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import graphs
import pytest
from dwarf_images import (
    ABBREVIATIONS,
    ALIAS,
    ARRAY,
    BASE,
    DEEP,
    MEMBER,
    POINTER,
    RANGE,
    STRUCT,
    TYPEDEF,
    UNIT,
    encode_abbreviation,
    encode_leb,
    encode_unit,
    read,
    read_with_both,
)
from typed import open_sources

from findleaks.debuginfo.type_table import Kind, TypeTable
from findleaks.engine.dwarf_sources import SPLIT, Source

PROGRAMS = Path(__file__).parents[1] / "programs"
MUTATIONS = 60


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


FIRST = 12 + 1  # offset of the second entry of a unit: the first entry is one byte long


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
    assert table.targets[pointer] == 1  # aliases that refer to each other are not a type


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
