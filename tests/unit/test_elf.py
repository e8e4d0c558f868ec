"""The ELF reader compared with pyelftools and readelf on real files, and tested on invalid files."""

from __future__ import annotations

import io
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection

from findleaks.errors import FindleaksError
from findleaks.target import elf
from findleaks.target.base import Module
from findleaks.target.symbols import ModuleSymbols

C_SOURCE = """
#include <stdlib.h>
int in_data = 3; static int local_data = 4; int in_bss[100]; __thread int in_tls;
static int helper(int x) { return x + local_data; }
int shared_function(int x) { return helper(x) + in_data; }
int main(void) { return shared_function(in_tls) == 12345; }
"""


def real_files(tmp: Path) -> list[Path]:
    source = tmp / "p.c"
    source.write_text(C_SOURCE)
    made = []
    for name, flags in (
        ("pie", []),
        ("nopie", ["-no-pie"]),
        ("lib.so", ["-shared", "-fPIC"]),
        ("static", ["-static"]),
        ("stripped", ["-s"]),
    ):
        subprocess.run(["gcc", "-O0", "-g", "-Wl,--build-id", *flags, "-o", tmp / name, source], check=True)
        made.append(tmp / name)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return real_files(tmp_path_factory.mktemp("elf"))


def test_headers_and_segments_agree_with_pyelftools(files: list[Path]) -> None:
    for path in files:
        data = path.read_bytes()
        theirs = ELFFile(io.BytesIO(data))
        head = elf.header(data)
        assert (head.type, head.machine, head.entry) == (
            {"ET_EXEC": 2, "ET_DYN": 3}[theirs["e_type"]],
            62,
            theirs["e_entry"],
        )
        ours = elf.segments(data, head)
        rows = [(s["p_offset"], s["p_vaddr"], s["p_filesz"], s["p_memsz"], s["p_flags"], s["p_align"]) for s in theirs.iter_segments()]
        assert [(s.offset, s.vaddr, s.filesz, s.memsz, s.flags, s.align) for s in ours] == rows
        assert rows
        sections = [(s.name, s["sh_addr"], s["sh_offset"], s["sh_size"], s["sh_link"]) for s in theirs.iter_sections()]
        assert [(s.name, s.addr, s.offset, s.size, s.link) for s in elf.sections(data, head)] == sections


def test_build_id_agrees_with_readelf_and_pyelftools(files: list[Path]) -> None:
    for path in files:
        data = path.read_bytes()
        head = elf.header(data)
        ours = elf.build_id(lambda at, size, data=data: data[at : at + size], head, elf.segments(data, head), None)
        printed = subprocess.run(["readelf", "-nW", path], capture_output=True, text=True, check=True).stdout
        assert re.search(r"Build ID: (\w+)", printed).group(1) == ours
        theirs = [
            note["n_desc"]
            for section in ELFFile(io.BytesIO(data)).iter_sections()
            if isinstance(section, NoteSection)
            for note in section.iter_notes()
            if note["n_type"] == "NT_GNU_BUILD_ID"
        ]
        assert theirs == [ours]


def test_symbols_agree_with_pyelftools(files: list[Path]) -> None:
    for path in files:
        data = path.read_bytes()
        tables = elf.tables_of_file(data, elf.header(data))
        sections = [s for s in ELFFile(io.BytesIO(data)).iter_sections() if isinstance(s, SymbolTableSection)]
        assert len(tables) == len(sections) > 0
        module = Module(str(path), 0x1000000, 0x1000000, 0x2000000)
        symbols = ModuleSymbols(module, tables)
        expected: dict[str, set[tuple[int, int]]] = {}
        for section in sections:
            for symbol in section.iter_symbols():
                kind = symbol["st_info"]["type"]
                if symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS") or kind in ("STT_SECTION", "STT_FILE", "STT_TLS"):
                    continue
                if symbol.name:
                    expected.setdefault(symbol.name, set()).add((symbol["st_value"] + module.bias, symbol["st_size"]))
        for name, places in list(expected.items())[:400]:
            found = symbols.by_name(name)
            assert found is not None, name
            assert (found.address, found.size) in places
        assert "shared_function" in expected or path.name == "stripped"
        assert symbols.by_name("in_tls") is None
        assert symbols.by_name("no_such_symbol") is None
        assert symbols.by_name("ared_function") is None, "the end of a longer name is no symbol"
        sized = {(a, s) for places in expected.values() for a, s in places if s}
        for address, size in sorted(sized)[:200]:
            for inside in (address, address + size - 1):
                found = symbols.by_address(inside)
                assert found is not None
                assert found.address <= inside < found.address + found.size
                assert (found.address, found.size) in sized


def test_symbols_of_a_memory_image(files: list[Path]) -> None:
    """Without section headers, the table is found through PT_DYNAMIC, with a GNU hash table or with the older one."""
    source = files[0].parent / "p.c"
    for style in ("gnu", "sysv"):
        path = files[0].parent / f"lib-{style}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,--hash-style={style}", "-o", path, source], check=True)
        data = path.read_bytes()
        head = elf.header(data)
        segments = elf.segments(data, head)
        bias = 0x7F0000000000
        image = bytearray(max(s.vaddr + s.memsz for s in segments))
        for s in segments:
            if s.type == elf.PT_LOAD:
                image[s.vaddr : s.vaddr + s.filesz] = data[s.offset : s.offset + s.filesz]

        def read(address: int, size: int, image: bytearray = image, bias: int = bias) -> bytes:
            assert bias <= address
            assert address + size <= bias + len(image)
            return bytes(image[address - bias : address - bias + size])

        (table,) = elf.tables_of_image(read, head, segments, bias)
        by_section = [t for t in elf.tables_of_file(data, head) if len(t.symbols) == len(table.symbols)]
        assert any(t.symbols == table.symbols and t.strings == table.strings for t in by_section)
        found = ModuleSymbols(Module("lib.so", bias, bias, bias + len(image)), [table]).by_name("shared_function")
        assert found is not None
        assert found.address > bias


def test_several_names_at_one_address_and_sizes_unknown() -> None:
    def entry(name: int, info: int, value: int, size: int, section: int = 1) -> bytes:
        return struct.pack("<IBBHQQ", name, info, 0, section, value, size)

    strings = b"\0_weak\0plain\0inner\0asm_code\0undefined\0tls\0"
    at = {name: strings.index(name.encode() + b"\0") for name in ("_weak", "plain", "inner", "asm_code", "undefined", "tls")}
    symbols = b"".join(
        [
            entry(0, 0, 0, 0, 0),
            entry(at["_weak"], 0x22, 0x100, 0x80),
            entry(at["plain"], 0x12, 0x100, 0x80),
            entry(at["inner"], 0x02, 0x110, 0x10),
            entry(at["asm_code"], 0x12, 0x200, 0),
            entry(at["undefined"], 0x12, 0x300, 0, 0),
            entry(at["tls"], 0x16, 0x10, 8),
        ]
    )
    table = ModuleSymbols(Module("m", 0x1000, 0x1000, 0x2000), [elf.Table(symbols, strings, "<IBBHQQ", True)])
    assert table.by_address(0x1100).name == "plain"
    assert table.by_address(0x1118).name == "inner"
    assert table.by_address(0x1120).name == "plain", "an address after a nested symbol is in the outer symbol"
    assert table.by_address(0x1180) is None
    assert table.by_address(0x1234).name == "asm_code"
    assert table.by_address(0x10FF) is None
    assert table.by_name("undefined") is None
    assert table.by_name("tls") is None


def test_functions_of_an_instruction_set_that_their_lowest_bit_selects() -> None:
    """ARM: the lowest bit of a function's value is 1 in Thumb code. The values of data are addresses, and the marks $t
    and $d are not symbols."""
    strings = b"\0thumb\0data\0$t\0$d\0"
    at = {name: strings.index(name.encode() + b"\0") for name in ("thumb", "data", "$t", "$d")}
    rows = [(at["thumb"], 0x101, 8, 0x12), (at["$t"], 0x100, 0, 0), (at["data"], 0x203, 1, 0x11), (at["$d"], 0x106, 0, 0)]
    symbols = b"".join(struct.pack("<IIIBBH", name, value, size, info, 0, 1) for name, value, size, info in rows)
    table = ModuleSymbols(Module("m", 0x1000, 0x1000, 0x2000), [elf.Table(symbols, strings, "<IIIBBH", False)], ~1)
    assert [table.by_address(0x1000 + address).name for address in (0x100, 0x107, 0x203)] == ["thumb", "thumb", "data"]
    assert table.by_address(0x1100).address == table.by_name("thumb").address == 0x1100
    assert table.by_name("data").address == 0x1203


def test_more_than_65534_segments() -> None:
    count = 70_033
    rows = b"".join(struct.pack("<IIQQQQQQ", 1, 6, 0, 0x1000 * i, 0, 0, 0x1000, 1) for i in range(count))
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, 128, 64, 0, 64, 56, 0xFFFF, 64, 1, 0)
    data = head + struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, count, 0, 0) + rows
    found = elf.segments(data, elf.header(data))
    assert len(found) == count
    assert found[-1].vaddr == 0x1000 * (count - 1)


def test_32_bit_and_big_endian() -> None:
    for bits, order, prefix in ((1, 1, "<"), (1, 2, ">"), (2, 2, ">")):
        forms = ("HHIIIIIHHHHHH", 52, 32) if bits == 1 else ("HHIQQQIHHHHHH", 64, 56)
        head = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
        head += struct.pack(prefix + forms[0], 4, 40, 1, 0, forms[1], 0, 0, forms[1], forms[2], 1, 0, 0, 0)
        if bits == 1:
            head += struct.pack(prefix + "IIIIIIII", 1, 0x40, 0x1000, 0, 0x10, 0x20, 6, 4)
        else:
            head += struct.pack(prefix + "IIQQQQQQ", 1, 6, 0x40, 0x1000, 0, 0x10, 0x20, 4)
        parsed = elf.header(head)
        assert (parsed.bits, parsed.machine_name.split(",")[0]) == (32 * bits, "ARM")
        assert elf.segments(head, parsed) == [elf.Segment(1, 6, 0x40, 0x1000, 0x10, 0x20, 4)]


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"\x7fELF", b"\x7fELF" + bytes(60), b"\x7fELF\2\1\1" + bytes(20), b"MZ" + bytes(100)])
def test_no_header(data: bytes) -> None:
    with pytest.raises(elf.ElfError):
        elf.header(data)


def test_notes_with_absurd_sizes_end_the_list() -> None:
    head = elf.Header(64, "little", 4, 62, 0, 0, 0, 0, 0, 0, 0, 0)
    good = struct.pack("<III", 5, 4, 1) + b"CORE\0\0\0\0" + b"abcd"
    for bad in (struct.pack("<III", 0xFFFFFFFF, 4, 1), struct.pack("<III", 4, 0xFFFFFFFF, 1) + b"CORE", b"\1\2\3"):
        found = list(elf.notes(good + bad, head))
        assert [(n.name, n.type, bytes(n.desc)) for n in found] == [(b"CORE", 1, b"abcd")]


def test_flipped_bytes_raise_only_expected_errors(files: list[Path]) -> None:
    """Flip every byte of the headers and many other bytes. Headers, sections, notes and symbols are read, or raise an
    error of findleaks."""
    original = bytearray((files[0].parent / "lib.so").read_bytes())
    chance = random.Random(4711)
    head = elf.header(original)
    tables = [*range(16, 64 + 56 * head.phnum), *range(head.shoff, len(original))]
    for _ in range(400):
        data = bytearray(original)
        for at in chance.sample(tables, 3):
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            parsed = elf.header(data)
            segments = elf.segments(data, parsed)
            elf.build_id(lambda at, size, data=data: bytes(data[at : at + size]), parsed, segments, None)
            symbols = ModuleSymbols(Module("x", 0, 0, 1 << 40), elf.tables_of_file(data, parsed))
            symbols.by_name("shared_function")
            symbols.by_address(0x1200)
        except FindleaksError:
            pass


def test_a_string_table_of_any_size_is_read_up_to_a_bound() -> None:
    """DT_STRSZ can be damaged, and a heap of many gigabytes can follow the table."""
    asked: list[int] = []
    tags = {elf.DT_SYMTAB: 0x2000, elf.DT_STRTAB: 0x3000, elf.DT_STRSZ: 1 << 40, elf.DT_HASH: 0x4000}
    dynamic = b"".join(struct.pack("<QQ", *item) for item in [*tags.items(), (0, 0)])

    def read(at: int, size: int) -> bytes:
        asked.append(size)
        return {0x1000: dynamic, 0x2000: bytes(24), 0x3000: b"\0", 0x4000: struct.pack("<II", 1, 1)}[at]

    head = elf.Header(64, "little", elf.ET_DYN, 62, 0, 64, 0, 56, 2, 64, 0, 0)
    part = elf.Segment(elf.PT_DYNAMIC, 4, 0, 0x1000, len(dynamic), len(dynamic), 8)
    for size, most in ((1 << 40, elf.MAX_STRINGS), (0x4000, 0x2000)):  # also if the image ends earlier
        asked.clear()
        assert elf.tables_of_image(read, head, [elf.Segment(elf.PT_LOAD, 4, 0, 0x1000, 0x4000, size, 4096), part], 0)
        assert max(asked) == most
    assert elf.tables_of_image(read, head, [elf.Segment(elf.PT_LOAD, 4, 0, 0x1000, 0x1000, 0x1000, 4096), part], 0) == []
