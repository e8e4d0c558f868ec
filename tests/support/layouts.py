"""findleaks in each form that users can have: installed from a wheel, installed editable, and a bare checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tree

from findleaks.engine.native.declarations import SIGNATURES

ROOT = Path(__file__).parents[2]
BASE = os.path.realpath(sys.executable)
"""The Python with which the tests' virtual environment was made. It may have any packages, also those that findleaks needs."""


@dataclass(frozen=True)
class Layout:
    """A form of findleaks. `cli` is the command that starts the command line; `package` is the folder from which `findleaks` is
    imported."""

    name: str
    cli: tuple[str, ...]
    package: Path
    python: tuple[str, ...]
    before: str = ""  # code that makes findleaks importable

    def loader(self, front: str) -> Path:
        inside = self.package / front
        return (inside if inside.is_dir() else self.package.parent / front) / f"findleaks_{front}.py"

    def imports(self, code: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run Python code in an interpreter that can import findleaks."""
        return run(*self.python, "-c", f"{self.before}\n{code}", **options)


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its output; the status is not checked. The time limit only ends commands that hang: `make demo`
    takes two minutes on a busy machine."""
    words = [str(word) for word in command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload,no-any-return]


def checkout(folder: Path, whole: bool = False) -> Path:
    """Copy the files that a clone of the checkout would have, without built files, and return the folder. Compiling the C engine takes half
    a minute, so the copy has one small source with the same functions, which do nothing. `whole`: copy the real sources."""
    for name in tree.files(ROOT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    native = folder / "common" / "native"
    if not whole:
        for source in native.glob("*.c"):
            source.unlink()
        (native / "engine.c").write_text(stub({"fl_sources": "FL_SOURCES", "fl_target": "(WORD | BIG << 8)"}))
    (native / "flags").write_text((native / "flags").read_text().replace("-O3", "-O0"))
    return folder


def stub(values: Mapping[str, object]) -> str:
    """Return a C source with all functions of the C engine. `values`: their return values by name; 0 for the others."""
    head = 'unsigned {0}(void);\n__attribute__((visibility("default"))) unsigned {0}(void) {{ return {1}; }}\n'
    return "".join(head.format(name, values.get(name, 0)) for name in SIGNATURES)


def build(source: Path, folder: Path, kind: str = "wheel", **env: str) -> Path:
    """Build the wheel, the "sdist", or the "editable" wheel of an editable install, as pip does, without network."""
    folder.mkdir(parents=True, exist_ok=True)
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    # Debug information, which the libraries do not keep, names the folder. With it, each folder would compile again.
    done = run(sys.executable, "-c", code, folder, cwd=source, env={**os.environ, "CFLAGS": "-g0", **env})
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


def install(wheel: Path, folder: Path, python: str = sys.executable) -> Path:
    """Make a new virtual environment of `python` with only this wheel, and return its Python."""
    done = run(python, "-m", "venv", "--without-pip", folder)
    assert done.returncode == 0, done.stderr
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    done = run(*pip, "install", "-q", "--no-compile", "--no-deps", "--no-index", wheel)  # compiling all modules would be half of the work
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def dependencies(folder: Path) -> Path:
    """Return a folder with wheels of everything that findleaks depends on, made from the packages in the tests' environment."""
    folder.mkdir(parents=True, exist_ok=True)
    for requirement in metadata.requires("findleaks") or []:
        if "extra ==" in requirement:
            continue
        try:
            found = metadata.distribution(re.findall(r"^[\w.-]+", requirement)[0])
        except metadata.PackageNotFoundError:
            continue  # not needed with this Python
        with zipfile.ZipFile(folder / f"{found.metadata['Name']}-{found.version}-py3-none-any.whl", "w") as archive:
            for file in found.files or []:
                if ".." not in file.parts and "__pycache__" not in file.parts and file.name not in ("INSTALLER", "REQUESTED"):
                    archive.write(str(file.locate()), str(file))
    return folder


def add_dependencies(python: Path, wheels: Path) -> None:
    """Let pip install the dependencies that findleaks in this environment declares, from a folder of wheels."""
    pip = (sys.executable, "-m", "pip", "--python", python)
    done = run(*pip, "install", "-q", "--no-compile", "--no-index", "--find-links", wheels, "findleaks")
    assert done.returncode == 0, done.stderr


def install_with_dependencies(name: str, wheel: Path, folder: Path, package: Path | None = None, wheels: Path | None = None) -> Layout:
    """Install `wheel` with its dependencies from the folder `wheels`. `package`: where its code is, if not in the environment."""
    python = install(wheel, folder)
    if wheels is not None:
        add_dependencies(python, wheels)
    found = package or next(folder.glob("lib/python3*/site-packages/findleaks"))
    return Layout(name, (str(folder / "bin" / "findleaks"),), found, (str(python),))


def bare(source: Path) -> Layout:
    """Return a checkout without an installation: the bootstrap file is run by path, by a Python that has only the standard library (-S), no
    matter which packages are installed for it."""
    package = source / "common"
    bootstrap = str(package / "bootstrap.py")
    return Layout("bare", (BASE, "-I", "-S", bootstrap), package, (BASE, "-S"), f"import runpy; runpy.run_path({bootstrap!r})['install']()")
