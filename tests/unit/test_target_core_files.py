"""Handmade cores: their modules, and the files that supply data that a core lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from handmade import HEAP, LIBRARY, built_library, constant_of, core_with, image_of, mapped_as, open_bytes, page

from findleaks.errors import UnreadableMemory


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_library(tmp_path_factory.mktemp("root"))


def test_modules_without_a_list_of_files_are_found_by_their_headers(tmp_path: Path) -> None:
    """As in a core that was cut before GDB's notes: segments that start with an ELF header are modules, named by DT_SONAME."""
    source = tmp_path / "l.c"
    source.write_text("int shared_data = 7; int shared_function(void) { return shared_data; }")
    library = tmp_path / "libx.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id,-soname,libx.so.1", "-o", library, source], check=True)
    core = open_bytes(tmp_path / "core", elfcore.core(image_of(library), [Task(100, {"rsp": LIBRARY})]))
    (module,) = core.modules()
    assert (module.path, module.bias, module.start) == ("libx.so.1", LIBRARY, LIBRARY)
    printed = subprocess.run(["readelf", "-nW", library], capture_output=True, text=True, check=True).stdout
    assert module.build_id in printed
    assert len(module.build_id) == 40
    found = core.symbol("shared_data")
    assert found is not None
    assert core.read(found.address, 4) == b"\7\0\0\0"
    function = core.symbolize(core.symbol("shared_function").address + 1)  # type: ignore[union-attr]
    assert function is not None
    assert function.name == "shared_function"


def test_bytes_the_core_lacks_come_from_the_file_with_the_same_build_id(tmp_path: Path, library: Path) -> None:
    core = open_bytes(tmp_path / "core", core_with(library, str(library)))
    assert core.warnings == []
    assert constant_of(core)
    code = core.symbol("shared_function")
    assert code is not None
    assert core.symbolize(code.address + 2) is not None
    assert core.read(code.address, 4) == library.read_bytes()[code.address - LIBRARY :][:4]


def test_sysroot_and_deleted_files(tmp_path: Path, library: Path) -> None:
    lost = open_bytes(tmp_path / "core", core_with(library, "/opt/x/libx.so (deleted)"))
    assert lost.warnings == ["libx.so (deleted): not on this machine: read-only data and symbols are missing. Give --sysroot."]
    assert not constant_of(lost)
    (tmp_path / "root/opt/x").mkdir(parents=True)
    (tmp_path / "root/opt/x/libx.so").write_bytes(library.read_bytes())
    assert constant_of(open_bytes(tmp_path / "core", core_with(library, "/opt/x/libx.so (deleted)"), sysroot=str(tmp_path / "root")))
    flat = open_bytes(tmp_path / "core", core_with(library, "/opt/x/libx.so"), sysroot=str(library.parent))
    assert constant_of(flat), "a folder with all files side by side is enough"


def test_a_module_whose_headers_are_not_in_the_core_is_listed_but_its_file_is_not_used(tmp_path: Path, library: Path) -> None:
    """As with coredump_filter 0x23: the core has no build-id to which the file could be compared."""
    loads = [Load(HEAP, 0x1000, page(b"h")), *image_of(library, only_first_page=True)]
    loads[1] = Load(LIBRARY, loads[1].size, b"", loads[1].mode)
    data = elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped_as(library, str(library)))
    core = open_bytes(tmp_path / "core", data)
    (module,) = core.modules()
    assert (module.path, module.start, module.build_id) == (str(library), LIBRARY, "")
    assert module.end == mapped_as(library, "")[-1][1]
    (warning,) = core.warnings
    assert warning.startswith("libx.so: without a build-id in the core to compare with this machine's file: ")
    assert core.symbol("text") is None
    with pytest.raises(UnreadableMemory):
        core.read(LIBRARY, 4)


def test_another_build_of_the_file_is_not_used(tmp_path: Path, library: Path) -> None:
    data = core_with(library, str(tmp_path / "libx.so"))
    (tmp_path / "l.c").write_text('const char text[] = "something else"; int shared_function(void) { return 2; }')
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", tmp_path / "libx.so", tmp_path / "l.c"], check=True)
    core = open_bytes(tmp_path / "core", data)
    (warning,) = core.warnings
    assert warning.startswith("libx.so on this machine (build-id ")
    assert f"is not the core's ({core.modules()[0].build_id[:8]}…); not used. Give --sysroot." in warning
    assert not constant_of(core)


def test_files_without_build_ids_are_compared_by_their_first_page(tmp_path: Path) -> None:
    """musl's dynamic linker has no build-id."""
    (tmp_path / "l.c").write_text('const char text[] = "constant in the file"; int shared_function(void) { return 1; }')
    made = tmp_path / "libm.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id=none", "-o", made, tmp_path / "l.c"], check=True)
    data = core_with(made, str(made))
    assert constant_of(open_bytes(tmp_path / "core", data))
    changed = bytearray(made.read_bytes())
    changed[0x600] ^= 1
    made.write_bytes(changed)
    core = open_bytes(tmp_path / "core", data)
    assert not constant_of(core)
    assert len(core.warnings) == 1


def test_a_file_without_a_build_id_in_the_core_needs_confirmation(tmp_path: Path) -> None:
    """The core has only the first page of the file. The build-id is outside of this page in files of wheels that auditwheel repaired."""
    (tmp_path / "w.c").write_text(
        'static char fill[8192] __attribute__((section(".aaa"), used)) = {1};'
        'const char text[] = "constant in the file"; int shared_function(void) { return 1; }'
    )
    made = tmp_path / "libw.so"
    link = ["-Wl,--build-id", "-Wl,--section-start=.note.gnu.build-id=0x3000"]
    subprocess.run(["gcc", "-shared", "-fPIC", *link, "-o", made, tmp_path / "w.c"], check=True)
    data = core_with(made, str(made))
    core = open_bytes(tmp_path / "core", data)
    assert core.modules()[0].build_id == ""
    assert core.symbol("text", "lib") is None
    assert "without a build-id in the core" in core.warnings[0]
    assert constant_of(open_bytes(tmp_path / "core", data, sysroot="/"))
