"""The files of a dead process's modules: looked for on this machine, and proven to be the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks import formatting
from findleaks.target.base import Module
from findleaks.target.files import Place, below, foreign_mounts
from findleaks.target.modules import DELETED, FileSource, Image, check


class ModuleFiles:
    """Finds modules' files: below `sysroot` if that is not "", and where `image` says ("the core",
    "the minidump"); the program's also at `exe`, and those that are named without a folder in
    `folders`. `remedy` says how the user names them. `near` is the image's own file: where it lies
    others are looked for, even on another machine's file system."""

    def __init__(self, exe: str, sysroot: str, remedy: str, image: str, near: str, folders: Sequence[str] = ()) -> None:
        self._exe, self._sysroot, self._remedy, self._image = exe, sysroot, remedy, image
        self._folders = folders
        self.shunned = foreign_mounts(near)
        self._differ: list[str] = []
        self._absent: list[str] = []
        self._vague: list[str] = []
        self._foreign: list[str] = []

    def find(self, found: Image, module: Module, is_main: bool) -> Optional[FileSource]:
        """The file that the module was loaded from; None where there is none that is proven so.
        `module` has the path to look at."""
        path = module.path.removesuffix(DELETED)
        named = [Place(self._exe)] if is_main and self._exe else []
        if self._sysroot:
            named += [Place(path, self._sysroot), Place(os.path.basename(path), self._sysroot)]
        places = [Place(path, "", self.shunned)] if path.startswith("/") else []
        if path and "/" not in path:
            places += [Place(f"{folder}/{path}", self._sysroot) for folder in self._folders]
        result = check([*named, *places], found, named)
        if result.mismatch:
            ids = f"build-id {_short_id(result.build_id)}) is not {self._image}'s ({_short_id(module.build_id)}"
            self._differ.append(f"{os.path.basename(result.path)} on this machine ({ids}): not used. {self._remedy}")
        elif result.file is None and not result.path and any(below(path, one) for one in self.shunned):
            self._foreign.append(os.path.basename(path))
        elif result.file is None:
            (self._vague if result.path else self._absent).append(os.path.basename(module.path) or hex(module.start))
        return result.file

    def warnings(self) -> Iterator[str]:
        """What was not found, or is another build, with the consequence."""
        yield from self._differ
        foreign = "on another machine's file system, or one of the kernel's, which no core has findleaks open (--sysroot / does)"
        vague = f"without a build-id in {self._image} to compare with this machine's file"
        for names, why in ((self._absent, "not on this machine"), (self._foreign, foreign), (self._vague, vague)):
            if names:
                yield f"{formatting.some(names)}: {why}: read-only data and symbols are missing. {self._remedy}"


def _short_id(build_id: str) -> str:
    return f"{build_id[:8]}…" if build_id else "none"
