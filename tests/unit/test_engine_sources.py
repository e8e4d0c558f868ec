"""The library of the C engine is used only if it was built from the sources beside it: the arguments of its functions
may differ otherwise."""

from __future__ import annotations

import ctypes
import io
import re
import shutil
import subprocess
from pathlib import Path

import layouts
import pytest
from fake import FakeTarget

from findleaks import commands
from findleaks.engine import load as engine
from findleaks.engine.native import library as kernel_library
from findleaks.engine.native import sources
from findleaks.engine.native.declarations import SIGNATURES
from findleaks.session import Session
from findleaks.target.arch import X86_64

SOURCES = Path(sources.FOLDER)


def compile_library(folder: Path, source: str) -> Path:
    path = folder / "_native.so"
    subprocess.run(["gcc", "-x", "c", "-fPIC", "-shared", "-o", path, "-"], input=source.encode(), check=True)
    return path


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library that has all functions, which do nothing. Its checksum is that of sources with one more space."""
    values = {"fl_sources": change_sources(tmp_path_factory.mktemp("sources")), "fl_target": X86_64.word}
    return compile_library(tmp_path_factory.mktemp("stale"), layouts.stub(values))


def change_sources(folder: Path) -> int:
    copy = folder / "kernel"
    shutil.copytree(SOURCES, copy)
    assert sources.checksum(str(copy)) == sources.checksum()
    with (copy / "scan.c").open("a") as file:
        file.write(" ")
    assert sources.checksum(str(copy)) != sources.checksum()
    return sources.checksum(str(copy))


def run_find(monkeypatch: pytest.MonkeyPatch, library: Path) -> tuple[str, str]:
    """Return the engine that is used with this library, and what `find` prints for a process without a heap."""
    monkeypatch.delenv(engine.PURE, raising=False)
    monkeypatch.setattr(kernel_library, "LIBRARY", str(library))  # an absolute path replaces the folder that it is joined to
    out = io.StringIO()
    session = Session(FakeTarget({0x10000: bytes(0x1000)}))
    commands.execute(lambda: session, ["find"], out, width=1000)
    return session.engine.name, out.getvalue()


def test_library_of_other_sources_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch, stale: Path) -> None:
    name, text = run_find(monkeypatch, stale)
    assert name == "pure"
    (line,) = re.findall(r"warning: .*C engine.*", text)
    assert f"{stale} was built from other sources: run make native, or install findleaks again" in line
    monkeypatch.setenv(engine.PURE, "1")
    assert not engine.stale_native() and not engine.missing_native()


def test_library_without_a_checksum_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_find(monkeypatch, compile_library(tmp_path, "void fl_free(void *memory) { (void)memory; }"))[0] == "pure"
    assert engine.stale_native()


def test_matching_library_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that `make native` built is accepted."""
    name, text = run_find(monkeypatch, Path(kernel_library.HERE, kernel_library.LIBRARY))
    assert name == "native"
    assert "C engine" not in text


def test_installed_library_is_compared_with_the_packaged_checksum(monkeypatch: pytest.MonkeyPatch, stale: Path, tmp_path: Path) -> None:
    packaged = tmp_path / "sources.crc"
    monkeypatch.delenv(engine.PURE, raising=False)
    monkeypatch.setattr(kernel_library, "LIBRARY", str(stale))
    monkeypatch.setattr(sources, "PACKAGED", str(packaged))
    said = kernel_library.ctypes.CDLL(str(stale)).fl_sources() & 0xFFFFFFFF
    checksum = sources.checksum

    def absent(folder: str = str(tmp_path / "none")) -> int:
        return checksum(folder)

    monkeypatch.setattr(sources, "checksum", absent)
    for text, name in ((f"{said:#010x}\n", "native"), (f"{said ^ 1:#010x}\n", "pure"), ("", "native")):
        packaged.write_text(text)
        assert engine.load(X86_64).name == name


def test_functions_are_kept_only_with_their_types(stale: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C interrupts the first use of a function, the second use must not call it with the default types."""
    loaded = kernel_library.CLibrary(str(stale))
    with monkeypatch.context() as patched:
        patched.setitem(SIGNATURES, "fl_target", (ctypes.c_int, [0]))
        with pytest.raises(TypeError):
            _ = loaded.fl_target
    function = loaded.fl_target
    assert function is loaded.fl_target and (function.restype, function.argtypes) == SIGNATURES["fl_target"]
    assert not hasattr(loaded, "fl_unknown")
