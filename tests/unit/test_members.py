"""Members named by the debug information of gcc and clang, DWARF 4 and 5. Damaged information gives no names and no exception."""

from __future__ import annotations

import random
import subprocess
from itertools import product
from pathlib import Path

import pytest
from fake import FakeTarget
from variants import mark_matrix_except

from findleaks.debuginfo.dwarf import open_dwarf
from findleaks.debuginfo.members import Members, Type
from findleaks.debuginfo.variables import Variables
from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.base import Module

SOURCE = """
struct link { struct link *next, *previous; };
typedef struct { long number; union { long as_long; char *as_text; }; } payload;
struct server { long port; struct link jobs; struct { int used; payload *items[4]; } table; const struct server *const peer; } server;
struct server *volatile pointer = &server;
static struct link links[8];
int main(void) { return (int)(long)&links[3] + (int)(long)pointer; }
"""

COMPILERS = {"-".join(pair): pair for pair in product(("gcc", "clang-19"), ("-gdwarf-4", "-gdwarf-5"))}


@pytest.fixture(scope="module", params=mark_matrix_except(COMPILERS, "gcc--gdwarf-4", "clang-19--gdwarf-5"))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, version = request.param
    folder = tmp_path_factory.mktemp("members")
    (folder / "server.c").write_text(SOURCE)
    subprocess.run([compiler, version, "-O0", "-no-pie", "-o", str(folder / "server"), str(folder / "server.c")], check=True)
    return folder / "server"


class OneModule(FakeTarget):
    """A fake target with one module, which has this file."""

    def __init__(self, data: bytes) -> None:
        super().__init__({0x1000: b"x"}, modules=[Module("/server", 0, 0, 1 << 40)])
        self.data = data

    def debug_data(self, module: Module) -> list[bytes]:
        return [self.data]


def find_address(data: bytes, name: str) -> int:
    for table in elf.tables_of_file(data, elf.header(data)):
        at = table.strings.find(b"\0" + name.encode() + b"\0") + 1
        for offset in range(0, len(table.symbols), 24):
            if int.from_bytes(table.symbols[offset : offset + 4], "little") == at:
                return int.from_bytes(table.symbols[offset + 8 : offset + 16], "little")
    raise LookupError(name)


def test_members_and_targets_of_pointers(program: Path) -> None:
    data = program.read_bytes()
    members = Members(OneModule(data))
    server = members.variable(find_address(data, "server"))
    assert server is not None
    assert (server.name, server.size) == ("server", 72)
    paths = {offset: server.at(offset)[0] for offset in (0, 8, 16, 24, 32, 56, 64)}
    assert paths == {0: ".port", 8: ".jobs", 16: ".jobs.previous", 24: ".table", 32: ".table.items[0]", 56: ".table.items[3]", 64: ".peer"}
    peer = server.at(64)[1]
    assert peer is not None
    again = peer.pointee()
    assert again is not None
    assert again.name == "server"
    item = server.at(40)[1]
    assert item is not None
    payload = item.pointee()
    assert payload is not None
    assert (payload.name, payload.at(0)[0], payload.size) == ("payload", ".number", 16)
    pointer = members.variable(find_address(data, "pointer"))
    assert pointer is not None
    below = pointer.pointee()
    assert below is not None
    assert below.at(24)[0] == ".table"
    links = members.variable(find_address(data, "links"))
    assert links is not None
    assert links.at(56)[0] == "[3].previous"
    assert members.variable(find_address(data, "server") + 8) is None


def test_a_file_without_debug_information(program: Path, tmp_path: Path) -> None:
    subprocess.run(["strip", "-g", "-o", str(tmp_path / "bare"), str(program)], check=True)
    data = (tmp_path / "bare").read_bytes()
    assert Members(OneModule(data)).variable(find_address(data, "server")) is None


def test_compressed_sections(program: Path, tmp_path: Path) -> None:
    subprocess.run(["objcopy", "--compress-debug-sections=zlib", str(program), str(tmp_path / "packed")], check=True)
    data = (tmp_path / "packed").read_bytes()
    server = Members(OneModule(data)).variable(find_address(data, "server"))
    assert server is not None
    assert server.at(8)[0] == ".jobs"


def walk(type_: Type | None, depth: int = 0) -> None:
    if type_ is None or depth > 6:
        return
    for offset in (0, 8, 24, 40, 64, 1 << 40):
        path, below = type_.at(offset)
        assert isinstance(path, str)
        assert isinstance(type_.name, str)
        walk(below.pointee() if below is not None else None, depth + 1)


def test_damaged_information_is_handled(program: Path) -> None:
    data = program.read_bytes()
    address = find_address(data, "server")
    sections = [s for s in elf.sections(data, elf.header(data)) if s.name in (".debug_info", ".debug_abbrev", ".debug_str_offsets")]
    for seed in range(40):
        rng = random.Random(seed)
        bad = bytearray(data)
        for _ in range(rng.choice((1, 3, 20, 200))):
            section = rng.choice(sections)
            bad[section.offset + rng.randrange(section.size)] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
        walk(Members(OneModule(bytes(bad))).variable(address))
    for size in range(0, len(data), 1999):
        try:
            file = open_dwarf(data[:size])
            if file is not None:
                Variables(file).at(address)
        except TargetError:
            continue
