"""Makes the package `findleaks` importable from the folder of this file, without changing sys.path.

The two files that users load into a debugger run this one by path. In a checkout (bare, or
installed editable) the folders do not have the package's name, and a wheel may be installed where
the debugger's own Python does not look.

sys.path stays as it is, because the debugger's modules must win over what is next to findleaks: the
folders gdb/ and lldb/ in a checkout, and other packages, perhaps for another Python, where it is
installed. For the same reason the libraries that findleaks depends on have a finder of their own,
which knows only their names and is asked last.

Run as a script, this file is the command line, without an install:
`python3 common/bootstrap.py find core`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python put this folder there, where its packages would hide modules of the standard library
    # (types).
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import glob
import os.path
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

FRONTS = ("gdb", "lldb")
LIBRARIES = ("capstone", "elftools")
"""Libraries that a debugger may load from findleaks' own environment. Both load in every Python 3:
they are pure Python, or use a shared library through ctypes."""


def folders(package: str) -> dict[str, str]:
    """Folders by package name: {"findleaks": …, "findleaks.gdb": …, "findleaks.lldb": …}.

    `package` is the folder of `findleaks`. In a checkout that is common/, with the front ends
    beside it; installed, it is findleaks/, with the front ends inside."""
    found = {"findleaks": package}
    for front in FRONTS:
        inside = os.path.join(package, front)
        beside = os.path.join(os.path.dirname(package), front)
        found["findleaks." + front] = inside if os.path.isdir(inside) else beside
    return found


class Finder:
    """Finder for sys.meta_path that knows the packages of findleaks only."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.folders = folders(package)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])


def sites(package: str) -> list[str]:
    """The site-packages folders with findleaks' dependencies, if they follow from the folder of
    `findleaks`.

    Of an installed package (by pip or pipx) that is the folder above; of a checkout, the one in its
    .venv, for any Python version."""
    above = os.path.dirname(package)
    if os.path.isdir(os.path.join(package, FRONTS[0])):
        return [above]
    return sorted(glob.glob(os.path.join(glob.escape(above), ".venv", "lib", "python3*", "site-packages")))


class LibraryFinder:
    """Finder for the end of sys.meta_path that knows LIBRARIES only: those that Python finds itself
    win.

    It looks in the folder `site`, or if that is "", in those that belong to `package`, the folder
    of `findleaks`."""

    def __init__(self, package: str, site: str = "") -> None:
        self.key = (package, site)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        package, site = self.key
        spec = PathFinder.find_spec(name, [site] if site else sites(package))
        # Without a loader it is an empty folder of that name.
        return spec if spec is not None and spec.loader is not None else None


def install() -> None:
    """Add the finders, once. The one for findleaks goes first, as the user asked for this copy of
    it."""
    package = os.path.dirname(os.path.realpath(__file__))
    if not any(getattr(finder, "package", None) == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package))
    _append_finder(LibraryFinder(package))


def add_site(site: str) -> None:
    """Look for LIBRARIES in this folder too. Needed where another environment has a checkout
    installed editable, which cannot be seen from the checkout."""
    _append_finder(LibraryFinder("", site))


def _append_finder(finder: LibraryFinder) -> None:
    if not any(getattr(other, "key", None) == finder.key for other in sys.meta_path):
        sys.meta_path.append(finder)


if __name__ == "__main__":
    install()
    from findleaks.cli import main

    sys.exit(main())
