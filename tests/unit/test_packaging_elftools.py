"""pyelftools is not loaded if it is missing, broken or of another release, or if it is in the working folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import run

from findleaks.debuginfo.elftools_loader import ELFTOOLS_MISSING, load_elftools

ALONE = """
import sys
from findleaks.debuginfo.elftools_loader import load_elftools
sys.path[:] = [sys.argv[1], *(entry for entry in sys.path if "-packages" not in entry)]
print(load_elftools())
"""


def copy(folder: Path) -> Path:
    """Copy the installed pyelftools."""
    installed = load_elftools()
    assert installed is not None and installed.__file__ is not None
    shutil.copytree(Path(installed.__file__).parent, folder / "elftools", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "elftools"


def no_module(folder: Path) -> None:
    (copy(folder) / "dwarf" / "structs.py").unlink()


def no_python(folder: Path) -> None:
    (copy(folder) / "dwarf" / "enums.py").write_text("<<<<<<< HEAD\n")


def empty_folder(folder: Path) -> None:
    """Create a folder that Python accepts as a namespace package."""
    (folder / "elftools").mkdir()


def release(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (copy(folder) / "__init__.py").write_text(f"__version__ = {text!r}\n")

    return change


def run_python(folder: str | Path, cwd: Path) -> str:
    """Return the output of a Python that can import findleaks, and otherwise only the contents of `folder`."""
    done = run(sys.executable, "-c", ALONE, folder, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_copy_is_loaded(tmp_path: Path) -> None:
    assert str(copy(tmp_path) / "__init__.py") in run_python(tmp_path, tmp_path)


@pytest.mark.parametrize("damage", [no_module, no_python, empty_folder, release("0.29"), release("0.33"), release("?")])
def test_a_broken_copy_counts_as_missing(damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(tmp_path)
    assert run_python(tmp_path, tmp_path) == "None"


@pytest.mark.parametrize("entry", ["", "."])
def test_code_in_the_working_folder_is_not_run(entry: str, tmp_path: Path) -> None:
    (tmp_path / "elftools.py").write_text("print('run')\n")
    assert run_python(entry, tmp_path) == "None"


def test_missing_pyelftools_is_reported_in_one_line() -> None:
    assert "\n" not in ELFTOOLS_MISSING
    assert "pip install 'pyelftools>=0.30,<0.33'" in ELFTOOLS_MISSING
    assert "make venv" in ELFTOOLS_MISSING
