"""Make `findleaks` importable from the directory of this file, without changing sys.path.

The files that users load into a debugger run this file by its path. The directories of a checkout
(bare, or installed as editable) do not have the package's name. The debugger's Python may also not
search the directory in which a wheel was installed. sys.path is not changed, so that modules of the
debugger take precedence over those next to findleaks. These are gdb/ and lldb/ in a checkout, or
other packages (perhaps for another Python) where findleaks is installed. For the same reason, the
libraries of findleaks have a finder that knows only their names and is asked last.

Run as a script, this file is the command line without an installation: `python3 common/bootstrap.py
find core`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python adds this directory to sys.path. Its packages would hide standard modules (types).
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import glob
import os.path
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

FRONTS = ("gdb", "lldb")
LIBRARIES = ("capstone", "elftools", "google")
"""Libraries in the environment of findleaks that any Python 3 can use, because they are pure Python
or use ctypes.
"google" is a namespace. The library in it is protobuf, which works without its extension module if
that was built for another Python."""


def folders(package: str) -> dict[str, str]:
    """Map "findleaks", "findleaks.gdb" and "findleaks.lldb" to their directories.
    `package`: the directory of "findleaks". In a checkout it is common/, and the front ends are
    beside it. If findleaks is installed, it is findleaks/, and the front ends are inside it."""
    found = {"findleaks": package}
    for front in FRONTS:
        inside = os.path.join(package, front)
        beside = os.path.join(os.path.dirname(package), front)
        found["findleaks." + front] = inside if os.path.isdir(inside) else beside
    return found


class Finder:
    """A finder for sys.meta_path that knows only the packages of findleaks."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.folders = folders(package)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])


def sites(package: str) -> list[str]:
    """Return the site-packages directories with the dependencies of `package`.
    If findleaks was installed by pip or pipx, this is the directory that contains `package`. In a
    checkout, these are the directories in its .venv, for any Python version."""
    above = os.path.dirname(package)
    if os.path.isdir(os.path.join(package, FRONTS[0])):
        return [above]
    return sorted(glob.glob(os.path.join(glob.escape(above), ".venv", "lib", "python3*", "site-packages")))


class LibraryFinder:
    """A finder for LIBRARIES only. It is at the end of sys.meta_path, so that libraries which
    Python itself finds take precedence.
    It searches `site`. If `site` is "", it searches the directories that belong to `package`."""

    def __init__(self, package: str, site: str = "") -> None:
        self.key = (package, site)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        package, site = self.key
        spec = PathFinder.find_spec(name, [site] if site else sites(package))
        if spec is None or spec.loader is not None:
            return spec
        # A result without a loader is a namespace, or an empty directory with that name.
        folders = [folder for folder in spec.submodule_search_locations or () if name == "google" and os.path.isdir(f"{folder}/protobuf")]
        if not folders:
            return None
        found = ModuleSpec(name, None, is_package=True)
        found.submodule_search_locations = folders
        return found


def install() -> None:
    """Add the finders, once. The finder for findleaks is the first, because the user has chosen
    this copy."""
    package = os.path.dirname(os.path.realpath(__file__))
    if not any(getattr(finder, "package", None) == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package))
    _append_finder(LibraryFinder(package))


def add_site(site: str) -> None:
    """Search `site` for LIBRARIES, too. This is needed because a checkout contains no reference to
    the environment in which it is installed as editable."""
    _append_finder(LibraryFinder("", site))


def _append_finder(finder: LibraryFinder) -> None:
    if not any(getattr(other, "key", None) == finder.key for other in sys.meta_path):
        sys.meta_path.append(finder)


if __name__ == "__main__":
    install()
    from findleaks.cli import run

    run()
