"""Makes the package `findleaks` importable from where this file lies, without touching sys.path.

The two files that users load into a debugger run this one by path: in a checkout (bare, or installed editable) the packages'
folders do not stand under the package's name, and a wheel may be installed where the debugger's own Python does not look.
Nothing is put on sys.path: beside a checkout's common/ stand folders named gdb/ and lldb/, and beside an installed package
whatever else its user installed, for perhaps another Python; the debugger's modules must win over both.

Run as a script it is the command line, with no install: `python3 common/bootstrap.py find core`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python put our folder there, where its packages would hide those of the standard library (types).
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]

import os.path
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

FRONTS = ("gdb", "lldb")


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


def install() -> None:
    """Put the finder in place, once; ahead of others, for the user asked for this very copy of findleaks."""
    package = os.path.dirname(os.path.realpath(__file__))
    if not any(getattr(finder, "package", None) == package for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package))


if __name__ == "__main__":
    install()
    from findleaks.cli import main

    sys.exit(main())
