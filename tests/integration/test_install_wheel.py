"""The contents of a wheel. It can be built and used with and without a C compiler, by every Python."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import layouts
import mallocs_python
import other_pythons
import pytest
import tree
from layouts import run

KERNELS = {f"findleaks/engine/native/_native{ending}.so" for ending in ("", "_32", "_big", "_32_big")}
SOURCES = "findleaks/engine/native/sources.crc"
ENGINE = """
from findleaks.engine import load as engine
from findleaks.target.arch import X86_64
print(*{engine.load(X86_64._replace(word=word, byteorder=order)).name for word in (4, 8) for order in ("little", "big")})
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.build(source, tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_one_wheel_for_every_python(wheel: Path) -> None:
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert wheel.name.split("-")[4].startswith("linux_")


def test_wheel_holds_the_package_and_nothing_else(wheel: Path, source: Path) -> None:
    found = names(wheel)
    shared = {name.partition(".data/data/share/")[2] for name in found if ".data/" in name}
    found = {name for name in found if ".data/" not in name}
    pages = {f"man/man1/{page.name}" for page in (source / "man").iterdir()}
    assert "man/man1/findleaks-find.1" in pages
    completions = {
        "bash-completion/completions/findleaks",
        "zsh/site-functions/_findleaks",
        "fish/vendor_completions.d/findleaks.fish",
    }
    assert shared == pages | completions
    assert {name.split("/")[0] for name in found if ".dist-info/" not in name} == {"findleaks"}
    ours = {f"findleaks/{path.relative_to(source / 'common')}" for path in source.glob("common/**/*.py")}
    ours |= {f"findleaks/{path.relative_to(source)}" for front in ("gdb", "lldb") for path in source.glob(f"{front}/*.py")}
    assert {name for name in found if name.endswith(".py")} == ours
    reports = ("heapmap", "growth", "flamegraph", "fleet")
    page = {f"findleaks/report/{one}/page.{ending}" for one in reports for ending in ("html", "css", "js")}
    page |= {f"findleaks/report/growth/{name}.js" for name in ("data", "chart", "table")}
    page |= {"findleaks/report/words.js", *(f"findleaks/report/flamegraph/{name}.js" for name in ("data", "graph", "table"))}
    assert {name for name in found if not name.endswith(".py") and ".dist-info/" not in name} == {
        *KERNELS,
        SOURCES,
        "findleaks/py.typed",
        *(f"findleaks/completions/{name}" for name in ("findleaks", "_findleaks", "findleaks.fish")),
        "findleaks/results/findleaks-1.schema.json",
        *(f"findleaks/types/ready/{name}.hints" for name in ("git", "nginx", "redis", "sqlite", "uwsgi")),
        *page,
    }


@pytest.mark.matrix
def test_source_archive_builds_the_same_wheel_and_works_without_a_compiler(wheel: Path, source: Path, tmp_path: Path) -> None:
    """The archive has all files of the repository, and a second build at another time is identical. A wheel built from it without a
    compiler lacks only the libraries, and uses the Python reference engine."""
    archive = layouts.build(source, tmp_path / "sdist", "sdist", SOURCE_DATE_EPOCH="1700000000")
    for path in source.rglob("*.md"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    assert layouts.build(source, tmp_path / "again", "sdist", SOURCE_DATE_EPOCH="1700000000").read_bytes() == archive.read_bytes()
    shutil.unpack_archive(archive, tmp_path)
    unpacked = tmp_path / archive.name[: -len(".tar.gz")]
    wanted = {name for name in tree.files(layouts.ROOT) if not name.startswith((".git", "common/native/"))}
    assert wanted <= set(tree.files(unpacked))
    assert {path.name for path in (unpacked / "common/native").iterdir()} == {path.name for path in (source / "common/native").iterdir()}
    made = layouts.build(unpacked, tmp_path / "dist", CC="/bin/false")
    assert {*names(made), *KERNELS} == names(wheel) and not KERNELS & names(made)
    layout = layouts.install_with_dependencies("wheel", made, tmp_path / "venv")
    done = layout.imports(ENGINE, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("pure\n", "")
    done = run(*layout.cli, "find", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_c_engine_is_a_plain_library(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        paths = [archive.extract(name, tmp_path) for name in sorted(KERNELS)]
    for path in paths:
        check_plain(path)


def check_plain(path: str) -> None:
    symbols = subprocess.run(["nm", "-D", path], check=True, capture_output=True, text=True).stdout
    assert not [line for line in symbols.splitlines() if " Py" in line or " _Py" in line]
    needed = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    assert "libpython" not in needed
    exported = {line.split()[2] for line in symbols.splitlines() if line.split()[1:2] == ["T"]}
    assert exported
    assert all(name.startswith("fl_") for name in exported)
    library = ctypes.CDLL(path)
    assert all(hasattr(library, name) for name in exported)


@pytest.mark.platform("x86-64", "a wheel with the C engine")
def test_installed_with_the_c_engine(wheel: Path, tmp_path: Path) -> None:
    layout = layouts.install_with_dependencies("wheel", wheel, tmp_path / "venv")
    done = layout.imports(ENGINE, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("native\n", "")
    done = layout.imports(ENGINE, cwd=tmp_path, env={**os.environ, "FINDLEAKS_PURE": "1"})
    assert (done.stdout, done.stderr) == ("pure\n", "")


@pytest.mark.matrix
def test_a_wheel_of_the_real_sources_finds_leaks(tmp_path: Path) -> None:
    wheel = layouts.build(layouts.checkout(tmp_path / "checkout", whole=True), tmp_path / "dist")
    layout = layouts.install_with_dependencies("wheel", wheel, tmp_path / "venv")
    assert layout.imports(ENGINE, cwd=tmp_path).stdout == "native\n"
    done = run(*layout.cli, "find", layouts.ROOT / "cores" / "sample.core.gz")
    assert (done.returncode, "definite" in done.stdout) == (0, True), done.stderr


@pytest.mark.matrix
def test_editable_install_builds_the_c_engine(tmp_path: Path) -> None:
    source = layouts.checkout(tmp_path / "checkout")
    wheel = layouts.build(source, tmp_path / "dist", "editable")
    assert (source / "common/engine/native/_native.so").is_file()
    layout = layouts.install_with_dependencies("editable", wheel, tmp_path / "venv", source / "common")
    assert layout.imports(ENGINE, cwd=tmp_path).stdout == "native\n"


def test_make_native_builds_the_c_engine_in_a_checkout(tmp_path: Path) -> None:
    """The test builds one of the four libraries, because all four are built by the same rule. `make test` has already built all four."""
    source = layouts.checkout(tmp_path / "checkout")
    layout = layouts.bare(source)
    library = source / "common/engine/native/_native.so"
    assert layout.imports(ENGINE, cwd=tmp_path).stdout == "pure\n"
    make = ("make", "native", f"NATIVE={library.relative_to(source)}")
    assert run(*make, cwd=source).returncode == 0
    assert {*layout.imports(ENGINE, cwd=tmp_path).stdout.split()} == {"native", "pure"}
    built = library.stat()
    assert run(*make, cwd=source).returncode == 0
    assert library.stat() == built
    next(source.glob("common/native/*.h")).touch()
    assert run(*make, cwd=source).returncode == 0
    assert library.stat().st_ino != built.st_ino


def test_make_native_without_a_compiler_prints_a_message(tmp_path: Path) -> None:
    source = layouts.checkout(tmp_path / "checkout")
    done = run("make", "native", "CC=no-such-compiler", cwd=source)
    assert done.returncode == 0
    assert "no C compiler (no-such-compiler)" in done.stdout


PYTHONS = {**dict.fromkeys(other_pythons.PACKED, other_pythons.get_packed), **dict.fromkeys(mallocs_python.SUITES, mallocs_python.get)}


@pytest.mark.matrix
@pytest.mark.parametrize("version", sorted(PYTHONS, key=lambda version: int(version.partition(".")[2])))
def test_every_python_takes_the_same_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    done = run(layouts.sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--no-index", "--target", tmp_path, wheel)
    assert done.returncode == 0, done.stderr
    python = PYTHONS[version](version)
    done = run(*python.command("-W", "error", "-c", ENGINE), env=python.environment(tmp_path))
    assert (done.stdout, done.stderr) == ("native\n", "")
    done = run(*python.command("-W", "error", "-m", "findleaks", "find", "--help"), env=python.environment(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_classifiers_name_these_pythons() -> None:
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (layouts.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(named) == set(PYTHONS)
