"""Find the module files of a dead process on this machine, and prove that they match."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks import formatting
from findleaks.target.base import Module
from findleaks.target.files import FilePlace, foreign_mounts, is_below
from findleaks.target.modules import DELETED, FileSource, Image, find_module_file


class ModuleFiles:
    """Finds files of modules: below `sysroot` if that is not "", and at the paths that `image`
    ("the core", "the minidump") names.
    The program's file is also searched at `exe`. Files that are named without a folder are searched
    in `folders`. `remedy` explains how the user passes files. `near` is the path of the image:
    module files are searched on its file system even if that is remote."""

    def __init__(self, exe: str, sysroot: str, remedy: str, image: str, near: str, folders: Sequence[str] = ()) -> None:
        self._exe, self._sysroot, self._remedy, self._image = exe, sysroot, remedy, image
        self._folders = folders
        self.shunned = foreign_mounts(near)
        self._differ: list[str] = []
        self._absent: list[str] = []
        self._unnamed: list[str] = []
        self._vague: list[str] = []
        self._foreign: list[str] = []

    def find(self, found: Image, module: Module, is_main: bool) -> Optional[FileSource]:
        """Return the file that the module was loaded from; None if none is proven to match.
        `module` has the path to search."""
        path = module.path.removesuffix(DELETED)
        named = [FilePlace(self._exe)] if is_main and self._exe else []
        if self._sysroot:
            named += [FilePlace(path, self._sysroot), FilePlace(os.path.basename(path), self._sysroot)]
        places = [FilePlace(path, "", self.shunned)] if path.startswith("/") else []
        if path and "/" not in path:
            places += [FilePlace(f"{folder}/{path}", self._sysroot) for folder in self._folders]
        result = find_module_file([*named, *places], found, named)
        if result.mismatch:
            ids = f"build-id {_short_id(result.build_id)}) is not {self._image}'s ({_short_id(module.build_id)}"
            self._differ.append(f"{os.path.basename(result.path)} on this machine ({ids}); not used. {self._remedy}")
        elif result.file is None and not result.path and any(is_below(path, one) for one in self.shunned):
            self._foreign.append(os.path.basename(path))
        elif not path and result.file is None:
            self._unnamed.append(hex(module.start))
        elif result.file is None:
            (self._vague if result.path else self._absent).append(os.path.basename(module.path) or hex(module.start))
        return result.file

    def warnings(self) -> Iterator[str]:
        """Yield a warning about files that were not found, and one about files that are another
        build. Each states the consequence."""
        yield from self._differ
        foreign = "on a remote or kernel file system, where findleaks opens no file that a core names (--sysroot / permits it)"
        vague = f"without a build-id in {self._image} to compare with this machine's file"
        unnamed = f"{self._image} does not contain the name of the program or library"
        for names, why in ((self._unnamed, unnamed), (self._absent, "not on this machine"), (self._foreign, foreign), (self._vague, vague)):
            if names:
                yield f"{formatting.some(names)}: {why}: read-only data and symbols are missing. {self._remedy}"


def _short_id(build_id: str) -> str:
    return f"{build_id[:8]}…" if build_id else "none"
