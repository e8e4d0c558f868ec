"""Make `findleaks` importable from the folder of this file, without changing sys.path.

The files that users load into a debugger run this file by path. The folders of a checkout (bare, or
installed editable) do not have the package's name, and the debugger's Python may not search the
folder of a wheel. sys.path is not changed, so that modules of the debugger take precedence over
those next to findleaks: gdb/ and lldb/ in a checkout, or other packages (perhaps for another
Python) where it is installed. For the same reason, the libraries of findleaks have a finder that
knows only their names and is asked last.

As a script, this file is the command line without an install: `python3 common/bootstrap.py find
core`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python added this folder, whose packages would hide standard modules (types).
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import glob
import os.path
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

FRONTS = ("gdb", "lldb")
LIBRARIES = ("capstone", "elftools", "google")
"""Libraries from the environment of findleaks that any Python 3 can use: pure Python, or through
ctypes.
"google" is a namespace; the library in it is protobuf, which works without its extension module if
that is built for another Python."""


def folders(package: str) -> dict[str, str]:
    """Map "findleaks", "findleaks.gdb" and "findleaks.lldb" to their folders.
    `package`: the folder of the first. In a checkout it is common/, and the front ends are beside
    it; if installed, it is findleaks/, and they are inside it."""
    found = {"findleaks": package}
    for front in FRONTS:
        inside = os.path.join(package, front)
        beside = os.path.join(os.path.dirname(package), front)
        found["findleaks." + front] = inside if os.path.isdir(inside) else beside
    return found


class Finder:
    """Finder for sys.meta_path that knows only the packages of findleaks."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.folders = folders(package)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])


def sites(package: str) -> list[str]:
    """Return the site-packages folders with the dependencies of `package`.
    If installed by pip or pipx: the folder above. In a checkout: those in its .venv, for any Python
    version."""
    above = os.path.dirname(package)
    if os.path.isdir(os.path.join(package, FRONTS[0])):
        return [above]
    return sorted(glob.glob(os.path.join(glob.escape(above), ".venv", "lib", "python3*", "site-packages")))


class LibraryFinder:
    """Finder for LIBRARIES only, at the end of sys.meta_path: libraries that Python itself finds
    take precedence.
    It searches `site`, or, if that is "", the folders that belong to `package`."""

    def __init__(self, package: str, site: str = "") -> None:
        self.key = (package, site)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        package, site = self.key
        spec = PathFinder.find_spec(name, [site] if site else sites(package))
        if spec is None or spec.loader is not None:
            return spec
        # A result without a loader is a namespace, or an empty folder with that name.
        folders = [folder for folder in spec.submodule_search_locations or () if name == "google" and os.path.isdir(f"{folder}/protobuf")]
        if not folders:
            return None
        found = ModuleSpec(name, None, is_package=True)
        found.submodule_search_locations = folders
        return found


def install() -> None:
    """Add the finders, once. The one for findleaks is the first, because the user asked for this
    copy."""
    package = os.path.dirname(os.path.realpath(__file__))
    if not any(getattr(finder, "package", None) == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package))
    _append_finder(LibraryFinder(package))


def add_site(site: str) -> None:
    """Search `site` for LIBRARIES, too. A checkout does not know the environment of its editable
    install."""
    _append_finder(LibraryFinder("", site))


def _append_finder(finder: LibraryFinder) -> None:
    if not any(getattr(other, "key", None) == finder.key for other in sys.meta_path):
        sys.meta_path.append(finder)


if __name__ == "__main__":
    install()
    from findleaks.cli import run

    run()
