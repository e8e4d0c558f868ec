"""Makes the package `findleaks` importable from where this file lies, without touching sys.path.

The two files that users load into a debugger run this one by path: in a checkout (bare, or installed editable) the packages'
folders do not stand under the package's name, and a wheel may be installed where the debugger's own Python does not look.
Nothing is put on sys.path: beside a checkout's common/ stand folders named gdb/ and lldb/, and beside an installed package
whatever else its user installed, for perhaps another Python; the debugger's modules must win over both. For the same reason the
libraries that findleaks declares are looked up by a finder of their own, which knows their names alone and is asked last.

Run as a script it is the command line, with no install: `python3 common/bootstrap.py find core`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python put our folder there, where its packages would hide those of the standard library (types).
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import glob
import os.path
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

FRONTS = ("gdb", "lldb")
LIBRARIES = ("capstone", "elftools")
"""What a debugger may borrow from findleaks' own environment. Both load in every Python 3: pure Python, and a plain library for ctypes."""


def folders(package: str) -> dict[str, str]:
    """The folder of each package that is not found under its parent's: {"findleaks": …, "findleaks.gdb": …, "findleaks.lldb": …}.

    `package` is the folder of `findleaks` itself: common/ in a checkout, whose neighbours the front ends are, or findleaks/ where it is
    installed, with the front ends inside.
    """
    found = {"findleaks": package}
    for front in FRONTS:
        inside = os.path.join(package, front)
        beside = os.path.join(os.path.dirname(package), front)
        found["findleaks." + front] = inside if os.path.isdir(inside) else beside
    return found


class Finder:
    """A finder for sys.meta_path that knows these packages and nothing else."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.folders = folders(package)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])


def sites(package: str) -> list[str]:
    """The folders in which pip put what findleaks depends on, as far as they follow from the folder of the package `findleaks`.

    That is the folder above an installed package (of pip and pipx alike); of a checkout, the one in its .venv, whatever Python that has.
    """
    above = os.path.dirname(package)
    if os.path.isdir(os.path.join(package, FRONTS[0])):
        return [above]
    return sorted(glob.glob(os.path.join(glob.escape(above), ".venv", "lib", "python3*", "site-packages")))


class LibraryFinder:
    """A finder for the end of sys.meta_path that knows LIBRARIES and nothing else: those that Python finds itself win.

    `package` is the folder of `findleaks`, by which to find them; or `site` is the folder that holds them.
    """

    def __init__(self, package: str, site: str = "") -> None:
        self.key = (package, site)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LIBRARIES:
            return None
        package, site = self.key
        spec = PathFinder.find_spec(name, [site] if site else sites(package))
        return spec if spec is not None and spec.loader is not None else None  # no loader: an empty folder of that name


def install() -> None:
    """Put the finders in place, once: findleaks' ahead of others, for the user asked for this very copy of it."""
    package = os.path.dirname(os.path.realpath(__file__))
    if not any(getattr(finder, "package", None) == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package))
    _look_last(LibraryFinder(package))


def add_site(site: str) -> None:
    """Look for LIBRARIES in this folder too: of an environment that has a checkout installed, of which the checkout does not know."""
    _look_last(LibraryFinder("", site))


def _look_last(finder: LibraryFinder) -> None:
    if not any(getattr(other, "key", None) == finder.key for other in sys.meta_path):
        sys.meta_path.append(finder)


if __name__ == "__main__":
    install()
    from findleaks.cli import main

    sys.exit(main())
