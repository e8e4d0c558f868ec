"""For cores of C++ programs, findleaks reports the types that the program allocated."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from debuggers import findleaks
from variants import mark_matrix_except

from cores import Running
from findleaks.block_types import Types
from findleaks.escaping import visible
from findleaks.target.base import Range
from findleaks.target.core import CoreTarget, open_core

PROGRAMS = Path(__file__).parents[1] / "programs"


class Block(NamedTuple):
    address: int
    size: int
    type: str


class Build(NamedTuple):
    compiler: str
    flags: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    stripped: bool = False
    kernel: bool = False


BUILDS = {
    "gcc": Build("g++"),
    "gcc stripped": Build("g++", stripped=True),
    "gcc stripped, kernel's core": Build("g++", stripped=True, kernel=True),
    "gcc at a fixed address, stripped": Build("g++", ("-no-pie", "-fno-pie"), stripped=True),
    "gcc, no relro, stripped": Build("g++", ("-Wl,-z,norelro",), ("-Wl,-z,norelro",), stripped=True),
    "gcc, own libstdc++, stripped": Build("g++", ("-static-libstdc++", "-static-libgcc"), stripped=True),
    "gcc without RTTI": Build("g++", ("-fno-rtti",), ("-fno-rtti",)),
    "clang": Build("clang++-19"),
    "clang stripped, kernel's core": Build("clang++-19", stripped=True, kernel=True),
}


KEPT = ("gcc", "gcc stripped, kernel's core", "gcc without RTTI", "clang stripped, kernel's core")
"""The builds that `make test` tests."""


def core_of(folder: Path, build: Build) -> tuple[Path, list[Block]]:
    """Build and run the program. Return its core, and the blocks that it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_ = [build.compiler, "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*compile_, "-shared", "-fPIC", *build.library, PROGRAMS / "types_library.cpp", "-o", folder / "libshape.so"], check=True
    )
    link = [f"-L{folder}", "-lshape", "-Wl,-rpath,$ORIGIN", *build.flags]
    subprocess.run([*compile_, PROGRAMS / "types_classes.cpp", "-o", folder / "prog", *link], check=True)
    if build.stripped:
        subprocess.run(["strip", folder / "prog", folder / "libshape.so"], check=True)
    with Running([str(folder / "prog")], folder / "run") as program:
        core = program.kernel_core() if build.kernel else program.gcore()
        blocks = []
        for line in program.output.splitlines()[:-1]:
            address, size, type_ = line.split(" ", 2)
            blocks.append(Block(int(address, 16), int(size), type_))
        return core, blocks


def build_pattern(type_: str, build: Build) -> str:
    """Return a regular expression for the type that findleaks can find: stripped programs have no names of C, and RTTI does not name
    construction vtables."""
    if build.compiler.startswith("clang"):
        type_ = type_.replace("{lambda(int)#1}", "$_0")
    if build.stripped:
        type_ = {"Throwing in Whole": "Throwing", "function handler(int)": "code in prog"}.get(type_, type_)
        if type_.startswith("table "):
            return r"table prog\+0x[0-9a-f]+"
    if "-fno-rtti" in build.flags and type_ == "Throwing in Whole":
        return ""  # all entries are null, so there is nothing to relocate, and it is among the constants
    return re.escape(type_)


@pytest.mark.platform("x86-64", "heap damage, C++ types, headers")
@pytest.mark.parametrize("name", mark_matrix_except(BUILDS.keys(), *KEPT))
def test_every_block_has_its_type(name: str, tmp_path: Path) -> None:
    build = BUILDS[name]
    core, blocks = core_of(tmp_path, build)
    target = open_core(str(core))
    types = Types(target)
    assert len(blocks) > 25
    wrong = []
    for block in blocks:
        got = types.of_block(block.address, block.size)
        if not re.fullmatch(build_pattern(block.type, build), got):
            wrong.append((block.type, got))
    assert not wrong
    check_ranges(target, types, blocks)
    target.close()


def check_ranges(target: CoreTarget, types: Types, blocks: list[Block]) -> None:
    """Check the ranges that the engine uses to group blocks by first words: they are few, sorted, and include every word that has a
    name."""
    ranges = types.ranges()
    assert ranges == sorted(ranges)
    assert all(a.end < b.start for a, b in zip(ranges, ranges[1:]))
    assert len(ranges) < 40
    for block in blocks:
        word = target.word(block.address)
        held = any(start <= word < end for start, end in ranges)
        assert held == bool(types.name(word)), (block, hex(word))
    size = sum(end - start for start, end in types.vtables())
    assert 0 < size < 1 << 20
    heap = Range(min(b.address for b in blocks), max(b.address for b in blocks))
    assert not any(r.start < heap.end and heap.start < r.end for r in ranges)


def test_hints_and_strings(tmp_path: Path) -> None:
    core, blocks = core_of(tmp_path, BUILDS["gcc"])
    types = Types(target := open_core(str(core)))
    strings = [b for b in blocks if b.type == "std::string"]
    assert [types.hint(target.read(b.address, 32)) for b in strings] == ['"short one"', ""]
    long_text = target.word(strings[1].address)
    assert types.hint(target.read(long_text, 48)) == '"this one is long enough …"'
    assert types.of_block(long_text, 56) == ""
    target.close()


def test_buffers_of_c_are_not_strings(tmp_path: Path) -> None:
    """A process without C++ has no std::string. `blocks` and `whatis` agree on this."""
    program = tmp_path / "text_buffers"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(PROGRAMS / "text_buffers.c")], check=True)
    with Running([str(program)], tmp_path / "run") as running:
        buffers = set(running.output.split()[:-1])
        core = str(running.kernel_core())
    blocks = [json.loads(line) for line in findleaks("blocks", "--json", core).splitlines()]
    assert {one["type"] for one in blocks if one.get("address") in buffers} == {None}
    assert sum(one.get("address") in buffers for one in blocks) == 20
    assert "string" not in findleaks("whatis", min(buffers), core)


def test_types_without_the_program_files(tmp_path: Path) -> None:
    """In a core from another machine, names among the program's constants are missing. The core has vtables, names of the C++ library, and
    the symbols in the first page of a small library."""
    core, blocks = core_of(tmp_path, Build("g++", stripped=True))
    (tmp_path / "prog").unlink()
    (tmp_path / "libshape.so").unlink()
    target = open_core(str(core))
    types = Types(target)
    found = {b.type: types.of_block(b.address, b.size) for b in blocks}
    assert re.fullmatch(r"class prog\+0x[0-9a-f]+", found["osgeo::proj::datum::Ellipsoid"])
    assert re.fullmatch(r"class libshape\.so\+0x[0-9a-f]+", found["library::(anonymous namespace)::Secret"])
    assert found["library::Square"] == "library::Square"
    assert found["std::runtime_error"] == "std::runtime_error"
    assert found["FILE"] == "FILE"
    assert found[""] == ""
    classes = {found[t] for t in ("osgeo::proj::datum::Ellipsoid", "Concrete", "Left", "Both", "Diamond")}
    assert len(classes) == 5
    target.close()


def test_damage_raises_no_error(tmp_path: Path) -> None:
    """Words of vtables, typeinfos and names are overwritten at random, each time with a misleading value. No error is raised."""
    core, blocks = core_of(tmp_path, Build("g++", stripped=True))
    whole = core.read_bytes()
    target = open_core(str(core))
    ranges = Types(target).vtables()
    words = [target.word(b.address) for b in blocks]
    regions = [r for r in target.regions() if r.readable and any(r.start < end and start < r.end for start, end in ranges)]
    pages = [target.read(r.start, r.size) for r in regions]
    target.close()
    places = [whole.find(page[:4096]) for page in pages]
    assert sum(place > 0 for place in places) >= 3
    chosen = random.Random(4)
    for turn in range(20):
        data = bytearray(whole)
        for region, place in zip(regions, places):
            for _ in range(region.size // 64 if place > 0 else 0):
                at = place + chosen.randrange(region.size // 8) * 8
                value = chosen.choice(
                    [0, 1, 1 << 63, (1 << 64) - 1, chosen.randrange(1 << 64), region.start + chosen.randrange(region.size)]
                )
                data[at : at + 8] = value.to_bytes(8, "little")
        broken = tmp_path / f"broken{turn}"
        broken.write_bytes(data)
        target = open_core(str(broken))
        types = Types(target)
        for word in words:
            name = types.name(word)
            assert visible(name).isprintable() and len(name) <= 200
        for block in blocks:
            types.of_block(block.address, block.size)
        target.close()
        broken.unlink()


def test_compilers_are_here() -> None:
    """No build is skipped, because the tests require both compilers."""
    assert all(shutil.which(build.compiler) for build in BUILDS.values())
