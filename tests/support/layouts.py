"""findleaks in each form a user can have it: installed from a wheel, installed editable, and a bare checkout."""

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
"""The Python that the tests' virtual environment was made of. It may have any packages, those that findleaks needs too."""


@dataclass(frozen=True)
class Layout:
    """`cli` starts the command line; `package` is the folder that the package `findleaks` is imported from."""

    name: str
    cli: tuple[str, ...]
    package: Path
    python: tuple[str, ...]
    before: str = ""  # code that makes findleaks importable

    def loader(self, front: str) -> Path:
        inside = self.package / front
        return (inside if inside.is_dir() else self.package.parent / front) / f"findleaks_{front}.py"

    def imports(self, code: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run Python code that may import findleaks."""
        return run(*self.python, "-c", f"{self.before}\n{code}", **options)


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run to the end and return what was printed; does not check the status. The limit is for what hangs: `make demo` takes two
    minutes on a busy machine."""
    words = [str(word) for word in command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload,no-any-return]


def checkout(folder: Path, whole: bool = False) -> Path:
    """Copy the files of the checkout that a clone would have, without built ones, and return the folder. The C engine takes half a minute
    to compile. The copy therefore has one small source with the same functions, which do nothing. `whole`: it has the real sources."""
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
    """Return a C source with all functions of the C engine. They return these values, by name, or 0."""
    head = 'unsigned {0}(void);\n__attribute__((visibility("default"))) unsigned {0}(void) {{ return {1}; }}\n'
    return "".join(head.format(name, values.get(name, 0)) for name in SIGNATURES)


def build(source: Path, folder: Path, kind: str = "wheel", **env: str) -> Path:
    """Build the wheel, the "sdist", or the "editable" wheel that an editable install installs; as pip does, without the network."""
    folder.mkdir(parents=True, exist_ok=True)
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    # Debug information, which the libraries do not keep, names the folder, and would have each folder compile again.
    done = run(sys.executable, "-c", code, folder, cwd=source, env={**os.environ, "CFLAGS": "-g0", **env})
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


def install(wheel: Path, folder: Path, python: str = sys.executable) -> Path:
    """A new virtual environment of `python` with this wheel and nothing else; returns its Python."""
    done = run(python, "-m", "venv", "--without-pip", folder)
    assert done.returncode == 0, done.stderr
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    done = run(*pip, "install", "-q", "--no-compile", "--no-deps", "--no-index", wheel)  # to compile all of it is half of the work
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def dependencies(folder: Path) -> Path:
    """A folder of wheels, made of what the tests' own environment has installed, for all that findleaks depends on."""
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
    """Let pip fetch what the findleaks in this environment declares that it needs, from a folder of wheels."""
    pip = (sys.executable, "-m", "pip", "--python", python)
    done = run(*pip, "install", "-q", "--no-compile", "--no-index", "--find-links", wheels, "findleaks")
    assert done.returncode == 0, done.stderr


def installed(name: str, wheel: Path, folder: Path, package: Path | None = None, wheels: Path | None = None) -> Layout:
    """Install `wheel`, and what it needs from the folder `wheels`; `package` is where its code runs from, if not from the environment."""
    python = install(wheel, folder)
    if wheels is not None:
        add_dependencies(python, wheels)
    found = package or next(folder.glob("lib/python3*/site-packages/findleaks"))
    return Layout(name, (str(folder / "bin" / "findleaks"),), found, (str(python),))


def bare(source: Path) -> Layout:
    """Nothing installed: the bootstrap file is run by path, by a Python that has the standard library only (-S), whatever its users have
    installed there."""
    package = source / "common"
    bootstrap = str(package / "bootstrap.py")
    return Layout("bare", (BASE, "-I", "-S", bootstrap), package, (BASE, "-S"), f"import runpy; runpy.run_path({bootstrap!r})['install']()")
