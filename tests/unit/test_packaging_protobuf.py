"""protobuf is loaded only when a pprof file is written. Modules that write files are imported only for commands that write one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import layouts
import pytest
from layouts import run

from findleaks import bootstrap
from findleaks.report.profiles.protobuf_loader import PROTOBUF_MISSING, require_protobuf

CORE = layouts.ROOT / "cores" / "sample.core.gz"
IMPORTED = """
import sys
from findleaks import cli
status = cli.main(sys.argv[1:])
print(status, sorted(name for name in sys.modules if name.startswith(("google", "findleaks.report.", "findleaks.commands."))))
"""
ALONE = """
import sys
from findleaks.report.profiles.protobuf_loader import ProtobufMissing, require_protobuf
sys.path[:] = [sys.argv[1], *(entry for entry in sys.path if "-packages" not in entry)]
try:
    print(require_protobuf()[0].__file__)
except ProtobufMissing as error:
    print(error)
"""


def copy(folder: Path) -> Path:
    """Copy the installed protobuf."""
    package = Path(str(require_protobuf()[0].__file__)).parent
    shutil.copytree(package.parent, folder / "google", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "google" / "protobuf"


def run_python(folder: Path, entry: str = "") -> str:
    done = run(sys.executable, "-c", ALONE, entry or folder, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_modules_that_write_files_are_imported_on_demand() -> None:
    for words in (["stacks", str(CORE)], ["find", str(CORE)], ["blocks", "--limit", "1", str(CORE)]):
        done = run(sys.executable, "-c", IMPORTED, *words)
        imported = done.stdout.splitlines()[-1]
        assert imported.startswith("0 [") and "findleaks.commands.output" in imported
        for name in (
            "google",
            "commands.export",
            "commands.profiles",
            "report.profile",
            "report.flamegraph",
            "report.files",
            "report.block_files",
        ):
            assert name not in imported


def test_a_copy_is_loaded(tmp_path: Path) -> None:
    package = copy(tmp_path)
    assert run_python(tmp_path) == str(package / "descriptor_pb2.py")


def test_extension_module_is_not_needed(tmp_path: Path) -> None:
    """The extension module may have been built for another Python than the debugger's."""
    package = copy(tmp_path)
    shutil.rmtree(package.parent / "_upb")
    assert run_python(tmp_path) == str(package / "descriptor_pb2.py")


@pytest.mark.parametrize("file", ["descriptor_pool.py", "__init__.py"])
def test_a_broken_copy_counts_as_missing(file: str, tmp_path: Path) -> None:
    (copy(tmp_path) / file).write_text("<<<<<<< HEAD\n")
    assert run_python(tmp_path) == PROTOBUF_MISSING
    assert run_python(tmp_path / "google") == PROTOBUF_MISSING


@pytest.mark.parametrize("entry", ["", "."])
@pytest.mark.parametrize("file", ["google.py", "google/__init__.py", "google/protobuf/__init__.py"])
def test_code_in_the_working_folder_is_not_run(entry: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("print('run')\n")
    done = run(sys.executable, "-c", ALONE, entry, cwd=tmp_path)
    assert (done.stderr, done.stdout) == ("", PROTOBUF_MISSING + "\n")


def test_namespace_is_found_only_for_protobuf(tmp_path: Path) -> None:
    finder = bootstrap.LibraryFinder("", str(tmp_path))
    (tmp_path / "google").mkdir()
    assert finder.find_spec("google") is None
    (tmp_path / "google" / "protobuf").mkdir()
    found = finder.find_spec("google")
    assert found is not None and found.loader is None and found.submodule_search_locations == [str(tmp_path / "google")]


def test_missing_protobuf_is_reported_before_reading(tmp_path: Path) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "__init__.py").write_text("raise ImportError\n")
    words = [sys.executable, "-m", "findleaks", "find", "-o", "a.pb.gz", str(CORE)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=180)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"findleaks: {PROTOBUF_MISSING}\n")
    assert "\n" not in PROTOBUF_MISSING and "pip install 'findleaks[pprof]'" in PROTOBUF_MISSING and not (tmp_path / "a.pb.gz").exists()
