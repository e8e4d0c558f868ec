"""The cache of types: it is used by the type index, limited in size, and safe against damage and parallel use."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import building
import pytest
from fake import FakeTarget
from typed import list_named, open_sources

from findleaks.debuginfo import type_index
from findleaks.debuginfo.sources import Sources
from findleaks.debuginfo.type_cache import TypeCache
from findleaks.debuginfo.type_index import TypeIndex
from findleaks.engine import load
from findleaks.engine.dwarf_sources import COLUMNS
from findleaks.errors import Interrupted
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

PROGRAMS = Path(__file__).parents[1] / "programs"


def columns(length: int = 5) -> list[array[int]]:
    return [array(code, [number % 200 for number in range(length)]) for code in COLUMNS]


def cache(folder: Path, most: int = 1 << 20) -> TypeCache:
    return TypeCache({"XDG_CACHE_HOME": str(folder)}, most)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "findleaks" / "types").iterdir())


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    assert cache(tmp_path).load("one") is None
    cache(tmp_path).store("one", columns())
    assert cache(tmp_path).load("one") == columns()
    assert (tmp_path / "findleaks" / "types").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["byte", "end", "empty", "longer"])
def test_a_damaged_file_is_ignored_and_removed(tmp_path: Path, damage: str) -> None:
    cache(tmp_path).store("one", columns())
    path = tmp_path / "findleaks" / "types" / "one"
    data = bytearray(path.read_bytes())
    if damage == "byte":
        data[len(data) // 2] ^= 1
    path.write_bytes({"byte": data, "end": data[:-1], "empty": b"", "longer": data + b"\0"}[damage])
    assert cache(tmp_path).load("one") is None
    assert not path.exists()


def test_the_total_size_is_limited(tmp_path: Path) -> None:
    """The least recently used files are removed, and also the temporary files of killed processes."""
    small = cache(tmp_path, 30000)
    for number in range(4):
        small.store(f"file{number}", columns(40))
        os.utime(tmp_path / "findleaks" / "types" / f"file{number}", (1000 + number, 1000 + number))
    assert small.load("file0") == columns(40)  # file0 is now the most recently used file
    (tmp_path / "findleaks" / "types" / ".unfinished").write_bytes(b"x")
    os.utime(tmp_path / "findleaks" / "types" / ".unfinished", (1, 1))
    small.store("large", columns(60))
    assert "file0" in files(tmp_path)
    assert "large" in files(tmp_path)
    assert "file1" not in files(tmp_path)
    assert ".unfinished" not in files(tmp_path)
    small.store("too large", columns(1000))
    assert "too large" not in files(tmp_path)


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "findleaks" / "types"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    cache(tmp_path).store("one", columns())
    assert files(tmp_path) == []
    folder.rmdir()
    (tmp_path / "other").mkdir()
    folder.symlink_to(tmp_path / "other")
    cache(tmp_path).store("one", columns())
    assert not list((tmp_path / "other").iterdir())
    (tmp_path / "file").write_text("")
    cache(tmp_path / "file").store("one", columns())  # not a folder: nothing is raised


WRITER = """
import sys
from array import array
from findleaks.debuginfo.type_cache import TypeCache
from findleaks.engine.dwarf_sources import COLUMNS
cache = TypeCache({"XDG_CACHE_HOME": sys.argv[1]}, 1 << 20)
for number in range(30):
    columns = [array(code, [int(sys.argv[2])] * 200) for code in COLUMNS]
    cache.store("shared", columns)
    found = cache.load("shared")
    assert found is None or all(len(set(column)) == 1 and column[0] == found[0][0] for column in found)
"""


def test_processes_share_the_folder(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)]) for number in range(3)]
    assert [writer.wait(timeout=180) for writer in writers] == [0, 0, 0]
    assert files(tmp_path) == ["shared"]


class Program(FakeTarget):
    """A fake target. Its module is this file."""

    def __init__(self, data: bytes, build_id: str) -> None:
        super().__init__({0x1000: b"x"}, modules=[Module("/types", 0, 0, 1 << 40, build_id)])
        self.data = data

    def debug_data(self, module: Module) -> Sequence[bytes]:
        return [self.data]


program = building.fixture("type_layouts.c", "-g", "-no-pie", "-w", name="types")


def index(program: Path, folder: Path, build_id: str = "abcdef0123", stop: float = 2.0) -> TypeIndex:
    def progress(phase: str, part: float) -> None:
        if part >= stop:
            raise Interrupted

    target = Program(program.read_bytes(), build_id)
    return TypeIndex(target, load.load(X86_64), Sources(target), progress, cache(folder))


def test_types_are_read_once_for_each_build_id(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = index(program, tmp_path)
    module = Module("/types", 0, 0, 1 << 40, "abcdef0123")
    table = first.of(module)
    assert table is not None
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(load.load(X86_64).__class__, "type_reader", lambda self: pytest.fail("read again"))
    again = index(program, tmp_path).of(module)
    assert again == table
    assert again is not None
    assert list_named(again)["STRUCT", "node"]
    assert len(open_sources(program).main()) == 1


def test_merged_tables_are_kept(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of all modules is merged once. It is found if the cache still has the table of each module."""
    monkeypatch.setattr(type_index, "LEAST_CACHED", 0)

    def make(bias: int) -> TypeIndex:
        made = index(program, tmp_path)
        starts = [(at << 40) + bias for at in (0, 1)]
        modules = [Module(f"/{at}", start, start, start + (1 << 40), f"aa{at}") for at, start in enumerate(starts)]
        monkeypatch.setattr(made._target, "modules", lambda: modules)
        made._cache = cache(tmp_path, 1 << 30)
        return made

    merged = make(0).program()
    assert merged is not None
    assert [one.address for one in merged.table.variables()] == [*merged.table.variable_addresses]
    assert len(files(tmp_path)) == 3
    monkeypatch.setattr(load.load(X86_64).__class__, "type_reader", lambda self: pytest.fail("merged again"))
    again, moved = make(0).program(), make(1 << 50).program()
    assert again == merged
    assert moved is not None
    assert [address - (1 << 50) for address in moved.table.variable_addresses] == [*merged.table.variable_addresses]
    (tmp_path / "findleaks" / "types" / next(name for name in files(tmp_path) if name.startswith("aa1"))).unlink()
    with pytest.raises(pytest.fail.Exception, match="merged again"):
        make(0).program()


def test_an_interrupt_leaves_nothing_behind(program: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        index(program, tmp_path, stop=0.75).of(Module("/types", 0, 0, 1 << 40, "abcdef0123"))
    assert not (tmp_path / "findleaks").exists()


def test_a_process_without_debug_information_reads_nothing(program: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    made = index(stripped, tmp_path, stop=0.0)
    assert made.of(Module("/types", 0, 0, 1 << 40, "abcdef0123")) is None
    assert made.program() is None
    assert not (tmp_path / "findleaks").exists()
