"""Capstone is loaded only when code has to be decoded. If it is missing or broken, a message of one line reports this."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import layouts
import pytest
from layouts import run

from findleaks import bootstrap
from findleaks.catalogue import CATALOGUE
from findleaks.disasm.capstone_loader import CAPSTONE_MISSING, load_capstone

HELP = """
import sys
from findleaks import cli, commands
for words in ([], ["help"], *([word, "--help"] for word in sys.argv[1:])):
    assert cli.main(words) == 0
print(sorted({name.partition(".")[0] for name in sys.modules} & {"capstone", "elftools"}))
"""
ALONE = """
import sys
from findleaks.disasm.capstone_loader import load_capstone
sys.path[:] = [sys.argv[1], *(entry for entry in sys.path if "-packages" not in entry)]
print(load_capstone())
"""


def test_help_of_no_command_imports_it() -> None:
    done = run(sys.executable, "-c", HELP, *CATALOGUE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: findleaks") == len(CATALOGUE)
    assert done.stdout.splitlines()[-1] == "[]"


def copy(folder: Path) -> Path:
    """Copy the installed capstone."""
    installed = load_capstone()
    assert installed is not None and installed.__file__ is not None
    shutil.copytree(Path(installed.__file__).parent, folder / "capstone", ignore=shutil.ignore_patterns("__pycache__", "include"))
    return folder / "capstone"


def library_of_another_machine(folder: Path) -> None:
    """Replace the library by one for which ctypes raises OSError."""
    (library,) = (copy(folder) / "lib").glob("libcapstone.so*")
    image = library.read_bytes()
    library.write_bytes(image[:18] + (22).to_bytes(2, sys.byteorder) + image[20:])  # elf.h: e_machine is EM_S390


def no_module(folder: Path) -> None:
    (copy(folder) / "x86_const.py").unlink()


def no_python(folder: Path) -> None:
    (copy(folder) / "__init__.py").write_text("<<<<<<< HEAD\n")


def empty_folder(folder: Path) -> None:
    """Create a folder that Python accepts as a namespace package."""
    (folder / "capstone").mkdir()


def other_release(folder: Path) -> None:
    file = copy(folder) / "__init__.py"
    text = file.read_text(encoding="utf-8")
    assert text.count("\nCS_API_MAJOR = 5\n") == 1
    file.write_text(text.replace("\nCS_API_MAJOR = 5\n", "\nCS_API_MAJOR = 4\n"), encoding="utf-8")


def run_python(folder: Path) -> str:
    """Return the output of a Python that can import findleaks, and otherwise only the contents of `folder`."""
    done = run(sys.executable, "-c", ALONE, folder, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_copy_is_loaded(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    assert str(folder / "__init__.py") in run_python(tmp_path)


@pytest.mark.parametrize("damage", [library_of_another_machine, no_module, no_python, empty_folder, other_release])
def test_a_broken_copy_counts_as_missing(damage: object, tmp_path: Path) -> None:
    assert callable(damage)
    damage(tmp_path)
    assert run_python(tmp_path) == "None"


@pytest.mark.parametrize("entry", ["", "."])
def test_code_in_the_working_folder_is_not_run(entry: str, tmp_path: Path) -> None:
    (tmp_path / "capstone.py").write_text("print('run')\n")
    done = run(sys.executable, "-c", ALONE, entry, cwd=tmp_path)
    assert (done.stderr, done.stdout) == ("", "None\n")


def test_missing_capstone_is_reported_in_one_line() -> None:
    assert "\n" not in CAPSTONE_MISSING
    assert "pip install 'capstone==5.*'" in CAPSTONE_MISSING
    assert "make venv" in CAPSTONE_MISSING


def test_folders_of_packages(tmp_path: Path) -> None:
    """Packages are imported from the folder of an installed findleaks. A checkout imports them from the Python in its
    .venv, and from no other."""
    package = tmp_path / "site-packages" / "findleaks"
    (package / "gdb").mkdir(parents=True)
    assert bootstrap.sites(str(package)) == [str(package.parent)]
    package = tmp_path / "a [checkout]" / "common"
    package.mkdir(parents=True)
    (package.parent / "gdb").mkdir()
    assert bootstrap.sites(str(package)) == []
    site = package.parent / ".venv" / "lib" / "python3.99" / "site-packages"
    site.mkdir(parents=True)
    assert bootstrap.sites(str(package)) == [str(site)]


def test_finder_has_only_the_declared_names(tmp_path: Path) -> None:
    for name in ("capstone", "gdb", "types"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "elftools").mkdir()
    finder = bootstrap.LibraryFinder("", str(tmp_path))
    found = finder.find_spec("capstone")
    assert found is not None and found.origin == str(tmp_path / "capstone" / "__init__.py")
    assert [finder.find_spec(name) for name in ("gdb", "types", "capstone.x86", "elftools")] == [None] * 4


INSTALL = """
import runpy, sys
before = list(sys.path), list(sys.meta_path)
for again in range(2):
    module = runpy.run_path(sys.argv[1])
    module["install"]()
    module["add_site"](sys.argv[2])
added = [finder for finder in sys.meta_path if finder not in before[1]]
print(sys.path == before[0], [type(finder).__name__ for finder in added], sys.meta_path[1:-2] == before[1])
"""


def test_finders_are_installed_once_and_last(tmp_path: Path) -> None:
    done = run(layouts.BASE, "-I", "-c", INSTALL, layouts.ROOT / "common" / "bootstrap.py", tmp_path)
    assert (done.stderr, done.stdout) == ("", "True ['Finder', 'LibraryFinder', 'LibraryFinder'] True\n")


CODE = "from findleaks import launcher; print(*launcher.gdb_lines(), *launcher.lldb_lines(), sep='\\n')"


def test_init_prints_the_path_of_the_environment(tmp_path: Path) -> None:
    """The printed code is Python, whatever the path is. The test runs it as a debugger would."""
    site = tmp_path / "it's `a`\\b"
    site.mkdir()
    copy(site)
    done = run(sys.executable, "-c", CODE, env={**os.environ, "PYTHONPATH": str(site)})
    load, python, load_lldb, script = done.stdout.splitlines()
    assert (load.split()[0], load_lldb.split()[:3]) == ("source", ["command", "script", "import"])
    assert python.startswith("python ") and script.startswith("script ") and "`" not in script
    assert python.partition(" ")[2] == script.partition(" ")[2]
    done = run(layouts.BASE, "-I", "-S", "-c", f"{python.partition(' ')[2]}\nimport capstone; print(capstone.__file__)")
    assert (done.stderr, done.stdout) == ("", f"{site / 'capstone' / '__init__.py'}\n")
