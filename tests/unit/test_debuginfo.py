"""Debug information: every variable compared with a walk of all entries; type units; files that are slow or large on purpose."""

from __future__ import annotations

import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from fake import FakeTarget
from variants import mark_matrix_except

from findleaks.debuginfo import sections
from findleaks.debuginfo.dwarf import DebugFile, open_dwarf
from findleaks.debuginfo.files import DebugFiles
from findleaks.debuginfo.members import Members
from findleaks.debuginfo.variables import Variables
from findleaks.errors import Interrupted
from findleaks.target import elf
from findleaks.target.base import Module

COMMON = """
namespace deep { struct Inner; extern Inner inner; extern int level; }
struct Flags { Flags *next; unsigned used : 3; unsigned spare : 20; };
template <typename T> struct Kept { T *first; long many; static Kept all; };
template <typename T> Kept<T> Kept<T>::all;
extern Flags flags; extern long numbers[40]; extern char late[96]; extern void see(const void *);
"""
SOURCES = {
    "first.cpp": "Flags flags; long numbers[40]; static deep::Inner *hidden = &deep::inner; Kept<Flags> kept;\n"
    "int main() { static long calls = 0; calls++; see(hidden); see(&flags); return Kept<int>::all.many + kept.many + calls; }",
    "second.cpp": "#include <map>\nnamespace deep { struct Inner { long first; std::map<int, long> names; virtual ~Inner() {} };\n"
    "Inner inner; int level; } int other() { return Kept<int>::all.many + Kept<long>::all.many; }",
    "third.cpp": "static Flags spare[4]; void see(const void *a) { static const void *last[3]; last[0] = a; spare[1].next = &flags;\n"
    + "".join(f"numbers[{n}] += (long)a;\n" for n in range(40))
    + "}",
    "calls.cpp": "void calls() { " + "see(late);" * 100 + "see(&deep::level); } char late[96];",
}
BUILDS = [
    *((compiler, version, "-O0") for compiler in ("g++", "clang++-19") for version in ("-gdwarf-4", "-gdwarf-5")),
    ("g++", "-gdwarf-5", "-O2"),
    ("g++", "-gdwarf-4", "-fdebug-types-section"),
    ("g++", "-gdwarf-5", "-fdebug-types-section"),
    ("clang++-19", "-gdwarf-4", "-fdebug-types-section"),
    ("clang++-19", "-gdwarf-5", "-fdebug-types-section"),
]
KEPT = ("g++-gdwarf-5-O2", "g++-gdwarf-4-fdebug-types-section", "clang++-19-gdwarf-4-O0", "clang++-19-gdwarf-5-fdebug-types-section")


def build(folder: Path, *options: str) -> Path:
    for name, text in SOURCES.items():
        (folder / name).write_text(COMMON + text)
    subprocess.run([*options, "-no-pie", "-o", "program", *SOURCES], check=True, cwd=folder)
    return folder / "program"


@pytest.fixture(scope="module", params=mark_matrix_except({"".join(build): build for build in BUILDS}, *KEPT))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("debuginfo"), *request.param)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Build a program with one variable, `chain`, with DWARF 4 at most."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.c").write_text("struct link { struct link *next; long value; } chain; int main(void) { return (int)chain.value; }")
    subprocess.run(["gcc", "-gdwarf-4", "-no-pie", "-o", "small", "small.c"], check=True, cwd=folder)
    return (folder / "small").read_bytes()


class OneModule(FakeTarget):
    """A fake target with one module, which has this file."""

    def __init__(self, data: bytes) -> None:
        super().__init__({0x1000: b"x"}, modules=[Module("/lib/program", 0, 0, 1 << 40)])
        self.data = data

    def debug_data(self, module: Module) -> list[bytes]:
        return [self.data]


def addresses(data: bytes) -> dict[str, int]:
    """Return the addresses of objects by the names that the compiler writes."""
    found = {}
    for table in elf.tables_of_file(data, elf.header(data)):
        for name, info, _, section, value, _ in struct.iter_unpack(table.form, table.symbols):
            if info & 15 == 1 and section:
                found[elf.text(table.strings, name)] = value
    return found


def read_address(value: Any, info: Any, unit: Any) -> int | None:
    """Return the address in a location expression, or None if the expression is not a single address."""
    if value.form != "DW_FORM_exprloc" or not value.value:
        return None
    if value.value[0] == 0x03 and len(value.value) == 9:
        return int.from_bytes(bytes(value.value[1:]), "little")
    if value.value[0] == 0xA1 and len(value.value) == 2:  # the operand is one byte of LEB128
        return int(info.get_addr(unit, value.value[1]))
    return None


def walk_entries(path: Path) -> tuple[dict[int, set[int]], set[int]]:
    """Return, by walking all entries of all units: the offsets of the entries of variables by address; and the
    addresses of other entries."""
    variables: dict[int, set[int]] = {}
    others: set[int] = set()
    with path.open("rb") as file:
        info = ELFFile(file).get_dwarf_info()
        for unit in info.iter_CUs():
            top, at = unit.get_top_DIE(), unit.cu_die_offset
            while at < unit.cu_offset + unit.size:
                die = DIE(unit, top.stream, at)
                at += die.size
                for name, value in die.attributes.items():
                    address = read_address(value, info, unit)
                    if address is not None and (die.tag, name) == ("DW_TAG_variable", "DW_AT_location"):
                        variables.setdefault(address, set()).add(die.offset)
                    elif address is not None:
                        others.add(address)
    return variables, others - variables.keys()


def open_file(data: bytes, tell: Callable[[str, float], None] = lambda phase, part: None) -> DebugFile:
    file = open_dwarf(data, tell)
    assert file is not None
    return file


def test_variables_equal_those_of_a_walk_of_all_entries(program: Path) -> None:
    variables, others = walk_entries(program)
    data = program.read_bytes()
    known = addresses(data)
    assert {known["flags"], known["numbers"], known["late"], known["_ZN4deep5innerE"], known["_ZN4KeptIlE3allE"]} <= variables.keys()
    found = Variables(open_file(data))
    for address, offsets in variables.items():
        die = found.at(address)
        assert die is not None, hex(address)
        assert die.offset in offsets
    assert [address for address in [*others, 0, 1, max(variables) + 1, 1 << 63] if found.at(address) is not None] == []


def test_members_of_the_same_types_in_every_form(program: Path) -> None:
    """Types may be in type units. DWARF 5 does not have byte offsets of bit-fields."""
    data = program.read_bytes()
    known, members = addresses(data), Members(OneModule(data))
    inner = members.variable(known["_ZN4deep5innerE"])
    assert inner is not None
    assert (inner.name, inner.size) == ("Inner", 64)
    assert [inner.at(offset)[0] for offset in (8, 16)] == [".first", ".names"]
    below = inner.at(16)[1]
    assert below is not None and below.name.startswith("map<int, ") and below.size == 48
    kept = members.variable(known["kept"])
    assert kept is not None and (kept.name, kept.size) == ("Kept<Flags>", 16)
    pointee = kept.at(0)[1].pointee() if kept.at(0)[1] is not None else None  # type: ignore[union-attr]
    assert pointee is not None and (pointee.name, pointee.at(0)[0]) == ("Flags", ".next")
    flags = members.variable(known["flags"])
    assert flags is not None
    assert (flags.name, flags.size, flags.at(0)[0]) == ("Flags", 16, ".next")
    assert flags.at(8)[0] in (".used", ".spare")
    late = members.variable(known["late"])
    assert late is not None and late.at(95)[0] == "[95]"


def test_a_file_without_debug_information_needs_no_pyelftools(small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.debuginfo.files.load_elftools", lambda: None)
    (tmp_path / "small").write_bytes(small)
    subprocess.run(["strip", "-g", "small"], check=True, cwd=tmp_path)
    for data, warned in (((tmp_path / "small").read_bytes(), False), (b"", False), (small[:64], False), (small, True)):
        files = DebugFiles(OneModule(data))
        assert Members(OneModule(data), files).variable(addresses(small)["chain"]) is None
        assert bool(files.warning) == warned


def test_information_in_other_files_is_reported_once(tmp_path: Path) -> None:
    for version in ("-gdwarf-4", "-gdwarf-5"):
        data = build(tmp_path, "g++", version, "-gsplit-dwarf").read_bytes()
        files = DebugFiles(OneModule(data))
        members = Members(OneModule(data), files)
        assert files.warning == ""
        assert [members.variable(addresses(data)[name]) for name in ("flags", "numbers", "late")] == [None] * 3
        expected = "members of variables of program have no names: debug information in .dwo files (-gsplit-dwarf) is not read"
        assert files.warning == expected


def test_types_in_a_supplementary_file(small: bytes, tmp_path: Path) -> None:
    """A program after `dwz -m`: references to types have the form DW_FORM_GNU_ref_alt."""
    (tmp_path / "small.c").write_text("struct link { struct link *next; long value; } chain; int main(void) { return (int)chain.value; }")
    subprocess.run(["gcc", "-gdwarf-4", "-S", "-o", "small.s", "small.c"], check=True, cwd=tmp_path)
    text = (tmp_path / "small.s").read_text()
    changed = text.replace("\t.uleb128 0x49\n\t.uleb128 0x13\n", "\t.uleb128 0x49\n\t.uleb128 0x1f20\n")  # DW_AT_type
    changed = changed.replace("\t.uleb128 0x49\t# (DW_AT_type)\n\t.uleb128 0x13", "\t.uleb128 0x49\n\t.uleb128 0x1f20")
    assert changed != text
    (tmp_path / "small.s").write_text(changed)
    subprocess.run(["gcc", "-no-pie", "-o", "small", "small.s"], check=True, cwd=tmp_path)
    data = (tmp_path / "small").read_bytes()
    files = DebugFiles(OneModule(data))
    assert Members(OneModule(data), files).variable(addresses(data)["chain"]) is None
    expected = "members of variables of program have no names: debug information in a supplementary file (.gnu_debugaltlink) is not read"
    assert files.warning == expected


def replace_section(data: bytes, name: str, content: bytes, flags: int = 0) -> bytes:
    """Return the program with a section that has these contents, at the end of the file, and these flags."""
    head = elf.header(data)
    number = next(number for number, section in enumerate(elf.sections(data, head)) if section.name == name)
    made = bytearray(data)
    struct.pack_into("<Q", made, head.shoff + number * head.shentsize + 8, flags)
    struct.pack_into("<QQ", made, head.shoff + number * head.shentsize + 24, len(made), len(content))
    return bytes(made) + content


def section(data: bytes, name: str) -> bytes:
    found = next(one for one in elf.sections(data, elf.header(data)) if one.name == name)
    return data[found.offset : found.offset + found.size]


def chain(data: bytes, tell: Callable[[str, float], None] = lambda phase, part: None) -> Variables:
    return Variables(open_file(data, tell))


def test_an_abbreviation_table_without_end(small: bytes) -> None:
    """Reading all of the table would take minutes and gigabytes."""
    table = (
        section(small, ".debug_abbrev").rstrip(b"\0")
        + b"\0\0"
        + b"".join(
            struct.pack("<BBBBBBBB", number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 | 1, 0x34, 0, 3, 8, 0) + b"\0"
            for number in range(1 << 16)
        )
    )
    variables = chain(replace_section(small, ".debug_abbrev", table))
    assert variables.at(addresses(small)["chain"]) is None
    assert variables._file._meter.reads <= sections.MAX_READS + 1


def test_a_number_without_end(small: bytes) -> None:
    variables = chain(replace_section(small, ".debug_abbrev", b"\x80" * (1 << 20)))
    assert variables.at(addresses(small)["chain"]) is None
    assert variables._file._meter.reads < 1 << 13


def test_a_file_that_fails_again_and_again_is_given_up(small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.debuginfo.dwarf.MAX_READS", 5)  # a small limit, as if the file were huge
    variables = chain(small)
    for _ in range(100):
        assert variables.at(addresses(small)["chain"]) is None
    assert variables._file._meter.reads < 100


def test_cyclic_types(small: bytes) -> None:
    """All references to types lead to the pointer type, which refers to itself."""
    info = bytearray(section(small, ".debug_info"))
    file = open_file(small)
    die = Variables(file).at(addresses(small)["chain"])
    assert die is not None
    entries = list(file.walk(die.cu, die.cu.cu_die_offset))
    pointer = next(entry for entry in entries if entry.tag == "DW_TAG_pointer_type")
    for entry in entries:
        if "DW_AT_type" in entry.attributes:
            struct.pack_into("<I", info, entry.attributes["DW_AT_type"].offset, pointer.offset - die.cu.cu_offset)
    found = Members(OneModule(replace_section(small, ".debug_info", bytes(info)))).variable(addresses(small)["chain"])
    for _ in range(1000):
        assert found is not None
        assert found.at(0)[0] == ""
        found = found.pointee()


def test_siblings_with_backward_links(small: bytes) -> None:
    info = bytearray(section(small, ".debug_info"))
    file = open_file(small)
    die = Variables(file).at(addresses(small)["chain"])
    assert die is not None
    for entry in file.walk(die.cu, die.cu.cu_die_offset):
        if "DW_AT_sibling" in entry.attributes:
            struct.pack_into("<I", info, entry.attributes["DW_AT_sibling"].offset, die.cu.cu_die_offset - die.cu.cu_offset)
    found = Members(OneModule(replace_section(small, ".debug_info", bytes(info)))).variable(addresses(small)["chain"])
    assert found is not None
    assert [found.at(offset)[0] for offset in (0, 8)] == [".next", ".value"]


def pack_section(content: bytes, claimed: int, old: bool = False) -> bytes:
    """Return the contents of a compressed section, with Elf64_Chdr or with the older header of .zdebug sections."""
    return (b"ZLIB" + struct.pack(">Q", claimed) if old else struct.pack("<IIQQ", 1, 0, claimed, 1)) + zlib.compress(content)


@pytest.mark.parametrize("old", [False, True])
def test_compressed_sections_are_inflated_only_if_their_sizes_make_sense(small: bytes, old: bool) -> None:
    def make_file(content: bytes, claimed: int) -> bytes:
        return (
            rename_section(small, content, claimed) if old else replace_section(small, ".debug_info", pack_section(content, claimed), 0x800)
        )

    info = section(small, ".debug_info")
    assert chain(make_file(info, len(info))).at(addresses(small)["chain"]) is not None
    bomb = bytes(1 << 25)
    for claimed in (1 << 25, 1 << 40, (1 << 64) - 1):
        assert open_dwarf(make_file(bomb, claimed)) is None


def rename_section(small: bytes, content: bytes, claimed: int) -> bytes:
    """Return the file with a section .zdebug_info. The table of names, with this name, is at the end of the file."""
    head = elf.header(small)
    strings = elf.sections(small, head)[head.shstrndx]
    table = small[strings.offset : strings.offset + strings.size]
    made = replace_section(small, ".shstrtab", table + b".zdebug_info\0")
    number = next(number for number, one in enumerate(elf.sections(small, head)) if one.name == ".debug_info")
    made = bytearray(replace_section(made, ".debug_info", pack_section(content, claimed, old=True)))
    struct.pack_into("<I", made, head.shoff + number * head.shentsize, len(table))
    return bytes(made)


def test_interruption_between_two_reads(small: bytes) -> None:
    """pyelftools replaces errors of its streams by its own errors. The interruption must still be raised, and at once."""
    asked = []

    def tell(phase: str, part: float) -> None:
        asked.append(phase)
        if stop:
            raise Interrupted

    stop = False
    table = b"\x7f\x34\x00\x03\x08\x00\x00" * (1 << 12)
    variables = chain(replace_section(small, ".debug_abbrev", table), tell)
    variables._file._meter.allow(1)
    before = len(asked)
    variables.at(addresses(small)["chain"])
    polls = len(asked) - before
    assert polls >= variables._file._meter.reads // sections.READS_BETWEEN_POLLS
    assert set(asked) == {"reading debug information"}
    stop = True
    with pytest.raises(Interrupted):
        variables.at(addresses(small)["chain"])


def test_reading_can_be_repeated_after_an_interruption(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.debuginfo.variables.WINDOW", 1 << 9)
    data = program.read_bytes()
    asked = 0

    def tell(phase: str, part: float) -> None:
        nonlocal asked
        asked += part > 0
        if part > 0 and asked == 5:
            raise Interrupted

    members = Members(OneModule(data), DebugFiles(OneModule(data), tell))
    with pytest.raises(Interrupted):
        members.variable(addresses(data)["late"])
    found = [members.variable(addresses(data)[name]) for name in ("flags", "late", "kept")]
    assert None not in found
