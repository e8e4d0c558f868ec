"""Lines and functions in debug information, compared with pyelftools and binutils. Files that are slow on purpose, or damaged."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from fake import FakeTarget
from inlined import SOURCE, last, plain
from variants import mark_matrix_except

from findleaks.debuginfo import ranges, zstd
from findleaks.debuginfo.dwarf import DebugFile, open_dwarf
from findleaks.debuginfo.located import Located
from findleaks.debuginfo.ranges import UnitsByAddress
from findleaks.debuginfo.sources import Sources
from findleaks.errors import Interrupted
from findleaks.target import elf, separate
from findleaks.target.base import Module, SourcePlace
from findleaks.target.files import FilePlace

BUILDS = {"".join(build): build for build in product(("g++", "clang++-19"), ("-gdwarf-4", "-gdwarf-5"))}
KEPT = ("g++-gdwarf-5", "clang++-19-gdwarf-4")


@pytest.fixture(scope="module", params=mark_matrix_except(BUILDS, *KEPT))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("located") / "program"
    subprocess.run([*request.param, "-O2", "-no-pie", "-o", made, SOURCE], check=True, cwd=made.parent)
    return made


def open_file(data: bytes) -> DebugFile:
    file = open_dwarf(data)
    assert file is not None
    return file


def read_rows(program: Path) -> Iterator[list[tuple[int, str, int]]]:
    """Return the address, file and line of each row of each sequence in the line tables, as pyelftools reads them."""
    with program.open("rb") as file:
        info = ELFFile(file).get_dwarf_info()
        for unit in info.iter_CUs():
            table = info.line_program_for_CU(unit)
            first = 0 if table["version"] >= 5 else 1
            sequence = []
            for entry in table.get_entries():
                state = entry.state
                if state is not None:
                    sequence.append((state.address, table["file_entry"][state.file - first].name.decode(), state.line))
                    if state.end_sequence:
                        yield sequence
                        sequence = []


def test_each_row_of_the_line_table(program: Path) -> None:
    located, seen = Located(open_file(program.read_bytes())), 0
    for sequence in read_rows(program):
        for (address, name, line), (following, _, _) in zip(sequence, sequence[1:]):
            if address < following:
                for place in (address, following - 1):
                    innermost = located.at(place)[0]
                    assert (Path(innermost.file).name, innermost.line) == (Path(name).name, line)
                seen += 1
    assert seen > 50


def test_each_row_has_binutils_functions(program: Path) -> None:
    places = sorted({address for sequence in read_rows(program) for address, _, _ in sequence[:-1]})
    words = ["addr2line", "-a", "-i", "-f", "-C", "-e", str(program), *map(hex, places)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    located = Located(open_file(program.read_bytes()))
    inlined = 0
    for place, text in zip(places, re.split(r"^0x[0-9a-f]+\n", printed, flags=re.M)[1:]):
        names, where = text.splitlines()[::2], text.splitlines()[1::2]
        found = located.at(place)
        if len(set(names)) == len(names):  # sometimes binutils prints a function that is inlined into itself: a copy without a linkage name
            assert [last(plain(one.function)) for one in found] == [last(plain(name)) for name in names], hex(place)
            inlined += len(found) > 2
        lines = [line.split(" (")[0].rsplit(":", 1)[1] for line in where]
        assert [one.line for one in found] == [int(line) if line.isdigit() else 0 for line in lines]
    assert inlined > 5


def test_units_by_their_first_entries(program: Path) -> None:
    """Units are found without .debug_aranges, which clang does not write."""
    data = bytearray(program.read_bytes())
    listed = UnitsByAddress(open_file(bytes(data)))
    names = data.find(b".debug_aranges\0")
    if names >= 0:
        data[names : names + 14] = b".debug_nothing"
    read = UnitsByAddress(open_file(bytes(data)))
    places = [address for sequence in read_rows(program) for address, _, _ in sequence[:-1]]
    assert [read.at(place) for place in places] == [listed.at(place) for place in places] == [0] * len(places)
    assert read.at(min(places) - 0x1000) is read.at(1 << 63) is None


def test_readable_parts_of_damaged_files_are_used(program: Path) -> None:
    """Whatever the bytes are, there is no exception and no long wait."""
    data = program.read_bytes()
    found = [one for one in elf.sections(data, elf.header(data)) if one.name.startswith(".debug_") and one.size]
    places = [address for sequence in read_rows(program) for address, _, _ in sequence[:-1]]
    chance = random.Random(7)
    for _ in range(40):
        made = bytearray(data)
        for _ in range(chance.choice((1, 4, 32))):
            one = chance.choice(found)
            at, size = one.offset + chance.randrange(one.size), chance.choice((1, 2, 8))
            made[at : at + size] = bytes(chance.choice((chance.randrange(256), 0, 0x7F, 0x80, 0xFF)) for _ in range(size))
        file = open_dwarf(bytes(made))
        if file is not None:
            located = Located(file)
            for place in chance.sample(places, 5):
                assert all(isinstance(one, SourcePlace) for one in located.at(place))


@pytest.mark.parametrize("name", [".debug_info", ".debug_abbrev", ".debug_line", ".debug_rnglists", ".debug_ranges", ".debug_aranges"])
@pytest.mark.parametrize("filled", [b"\0", b"\xff", b"\x80", b"\x01"])
def test_sections_full_of_one_byte(program: Path, name: str, filled: bytes) -> None:
    data = bytearray(program.read_bytes())
    one = next((one for one in elf.sections(data, elf.header(data)) if one.name == name), None)
    if one is not None:
        data[one.offset : one.offset + one.size] = filled * one.size
    places = [address for sequence in read_rows(program) for address, _, _ in sequence[:-1]]
    file = open_dwarf(bytes(data))
    if file is not None:
        located = Located(file)
        for place in places[::17]:
            located.at(place)


def test_lists_without_end(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges with many entries may be one endless list. Reading stops at a limit. Units whose addresses need no list are found."""
    monkeypatch.setattr(ranges, "MAX_WORK", 40)
    file = open_file(program.read_bytes())
    located = Located(file)
    places = [address for sequence in read_rows(program) for address, _, _ in sequence[:-1]]
    assert all(len(located.at(place)) <= 1 for place in places[:5])


def test_interruption(program: Path) -> None:
    def tell(phase: str, part: float) -> None:
        raise Interrupted

    file = open_file(program.read_bytes())
    file.progress = tell
    with pytest.raises(Interrupted):
        Located(file).at(0x401000)


def test_damaged_zstd() -> None:
    packed = subprocess.run(["zstd", "-c"], input=bytes(range(256)) * 4096, capture_output=True, check=True).stdout
    whole = bytes(range(256)) * 4096
    assert zstd.unpack_section(memoryview(packed), len(whole), lambda: None) == whole
    assert zstd.unpack_section(memoryview(packed), 1000, lambda: None) == whole[:1000]
    assert zstd.unpack_section(memoryview(b"no zstd"), 1000, lambda: None) == b""
    cut = zstd.unpack_section(memoryview(packed)[: len(packed) // 2], len(whole), lambda: None)
    assert whole.startswith(cut)
    with pytest.raises(Interrupted):
        zstd.unpack_section(memoryview(packed), len(whole), interrupt)


def interrupt() -> None:
    raise Interrupted


def add_section(data: bytes, name: bytes, content: bytes, folder: Path) -> bytes:
    """Return a copy of the program with one more section."""
    (folder / "section").write_bytes(content)
    (folder / "before").write_bytes(data)
    words = ["objcopy", f"--add-section={name.decode()}={folder / 'section'}", str(folder / "before"), str(folder / "after")]
    subprocess.run(words, check=True)
    return (folder / "after").read_bytes()


def test_links_to_other_files(tmp_path: Path) -> None:
    """.gnu_debuglink and .gnu_debugaltlink, with a build-id and with a checksum. Damaged links are ignored."""
    subprocess.run(["gcc", "-g", "-Wl,--build-id=none", "-x", "c", "-o", tmp_path / "program", "-"], input=b"int main(void){}", check=True)
    data = (tmp_path / "program").read_bytes()
    right = struct.pack("<I", zlib.crc32(data))
    for content, expected in (
        (b"debug.file\0\0" + right, separate.Link("debug.file", zlib.crc32(data))),
        (b"debug.fil\0" + right, None),
        (b"../debug.fi\0" + right, None),
        (b"\0\0\0\0" + right, None),
        (b"", None),
    ):
        made = add_section(data, b".gnu_debuglink", content, tmp_path) if content else data
        assert separate.debug_link(made) == expected
    for content, alternate in (
        (b"../common.debug\0" + b"\xab" * 20, separate.Alternate("../common.debug", "ab" * 20)),
        (b"common.debug", None),
        (b"\0" + b"\xab" * 20, None),
    ):
        assert separate.alternate_link(add_section(data, b".gnu_debugaltlink", content, tmp_path)) == alternate
    assert separate.debug_link(b"\x7fELF") is separate.alternate_link(b"") is None
    found = separate.SeparateFiles()
    module = Module(str(tmp_path / "bin" / "program"), 0, 0x1000, 0x2000)
    for checksum, wanted in ((right, data), (bytes(4), None)):
        own = add_section(data, b".gnu_debuglink", b"debug.file\0\0" + checksum, tmp_path)
        (tmp_path / "bin" / ".debug").mkdir(parents=True, exist_ok=True)
        (tmp_path / "bin" / ".debug" / "debug.file").write_bytes(data)
        found = separate.SeparateFiles()
        assert found.of(module, own, None, "") == wanted
        elsewhere = Module("/nowhere/program", 0, 0x1000, 0x2000)
        assert separate.SeparateFiles().of(elsewhere, own, FilePlace(str(tmp_path / "bin" / "program")), "") == wanted


class OneModule(FakeTarget):
    """A fake target with one module, which has this file."""

    def __init__(self, data: bytes, build_id: str = "ab" * 20) -> None:
        super().__init__({0x1000: b"x"}, modules=[Module("/bin/program", 0, 0, 1 << 40, build_id)])
        self.data = data

    def debug_data(self, module: Module) -> list[bytes]:
        return [self.data]


class Debugger:
    """A debugger that knows the line of one address."""

    def __init__(self, known: int) -> None:
        self.known = known
        self.asked: list[tuple[int, str]] = []

    def places(self, address: int, build_id: str) -> tuple[SourcePlace, ...]:
        self.asked.append((address, build_id))
        return (SourcePlace("", "/by/debugger.c", 7),) if address == self.known else ()


def test_a_debugger_is_asked_if_the_files_lack_information(program: Path) -> None:
    """The debugger is not asked about a module without a build-id, because the debugger may have another file."""
    place = next(read_rows(program))[0][0]
    target = OneModule(program.read_bytes())
    target.debugger = debugger = Debugger(5)
    own = Located(open_file(program.read_bytes())).at(place)
    sources = Sources(target)
    assert own and sources.at(place) == own
    assert debugger.asked == []
    assert sources.at(5) == (SourcePlace("", "/by/debugger.c", 7),)
    assert debugger.asked == [(5, "ab" * 20)]
    target = OneModule(program.read_bytes(), "")
    target.debugger = debugger
    assert Sources(target).at(5) == ()
    assert len(debugger.asked) == 1
