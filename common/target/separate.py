"""Find separate debug files of programs and libraries.

Files are searched for as in GDB ("Debugging Information in Separate Files" in its manual):

- by build-id, below the folders for debug files;
- by the name in .gnu_debuglink, beside the program or library, in the .debug folder beside it, and
  below the folders for debug files;
- supplementary files of dwz, by .gnu_debugaltlink.

A file is used only if its build-id matches, or its checksum if there is no build-id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.base import Module
from findleaks.target.files import FilePlace
from findleaks.target.reader import map_file
from findleaks.value_classes import NamedTuple

FOLDERS = ("/usr/lib/debug",)
_SLICE = 1 << 24  # bytes per step of a checksum
_MAPPED = 1 << 24  # size from which a file of split DWARF is mapped


class Link(NamedTuple):
    """.gnu_debuglink: the base name of a file and its CRC-32 (as in zlib)."""

    name: str
    checksum: int


class Alternate(NamedTuple):
    """.gnu_debugaltlink: the path and build-id of a supplementary file made by dwz."""

    path: str
    build_id: str


class SeparateFiles:
    """Separate debug files of a target's modules. `folders` are the folders where such files are
    installed. For `shunned`, see FilePlace."""

    def __init__(self) -> None:
        self.folders: Sequence[str] = FOLDERS
        self.shunned: frozenset[str] = frozenset()
        self._found: dict[int, Optional[memoryview]] = {}  # debug file by start of the module
        self._beside: dict[int, str] = {}  # folder of a module's debug file, by path

    def of(self, module: Module, own: Optional[elf.Buffer], place: Optional[FilePlace], sysroot: str) -> Optional[memoryview]:
        """Return the separate debug file of a module. `own` and `place`: the contents and the path
        of the module's own file, if this machine has it."""
        if module.start not in self._found:
            self._found[module.start] = self._find(module, own, place, sysroot)
        return self._found[module.start]

    def add(self, module: Module, path: str) -> bool:
        """Use the file at `path` for a module. Return False if the file does not match."""
        found = _open_file(FilePlace(path), module.build_id, None)
        if found is not None:
            self._found[module.start], self._beside[module.start] = found, os.path.dirname(path)
        return found is not None

    def alternate(self, module: Module, wanted: Alternate, sysroot: str) -> Optional[memoryview]:
        """Return the supplementary file that a module's debug file names."""
        named = [wanted.path]
        if not wanted.path.startswith("/"):
            folders = (self._beside.get(module.start, ""), os.path.dirname(module.path))
            named = [os.path.normpath(os.path.join(folder, wanted.path)) for folder in folders if folder]
        places = [*(FilePlace(path, sysroot, self.shunned) for path in named), *self._by_build_id(wanted.build_id, sysroot)]
        return next((data for place in places if (data := _open_file(place, wanted.build_id, None)) is not None), None)

    def split(self, module: Module, path: str, sysroot: str) -> Optional[elf.Buffer]:
        """Return a .dwo file. It is searched at its path, and by its name beside the module and
        beside the module's debug file. If the path is "", return the module's .dwp file. The caller
        compares the ids of the units."""
        folders = [folder for folder in (self._beside.get(module.start, ""), os.path.dirname(module.path)) if folder]
        base = os.path.basename(module.path)
        names = [os.path.basename(path)] if path else [f"{base}.dwp", f"{base}.debug.dwp"]
        paths = [path] if path.startswith("/") else []
        paths += [f"{folder}/{name}" for folder in folders for name in names]
        for one in paths:
            found = _contents(FilePlace(one, sysroot, self.shunned))
            if found is not None:
                return found
        return None

    def _find(self, module: Module, own: Optional[elf.Buffer], place: Optional[FilePlace], sysroot: str) -> Optional[memoryview]:
        for candidate in self._by_build_id(module.build_id, sysroot):
            found = _open_file(candidate, module.build_id, None)
            if found is not None:
                self._beside[module.start] = os.path.dirname(candidate.path)
                return found
        link = debug_link(own) if own is not None else None
        if link is not None:
            # The file may be in another folder now than in the process.
            beside = [place._replace(path=path) for path in self._by_link(place.path, link)] if place is not None else []
            for candidate in (*beside, *(FilePlace(path, sysroot, self.shunned) for path in self._by_link(module.path, link))):
                found = _open_file(candidate, module.build_id, link)
                if found is not None:
                    self._beside[module.start] = os.path.dirname(candidate.path)
                    return found
        return None

    def _by_build_id(self, build_id: str, sysroot: str) -> Iterator[FilePlace]:
        """Yield possible paths below the sysroot and on this machine. A file found there matches,
        because its name is the build-id."""
        for folder in self.folders if len(build_id) > 2 else ():
            path = f"{folder}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
            yield from (FilePlace(path, sysroot), FilePlace(path)) if sysroot else (FilePlace(path),)

    def _by_link(self, path: str, link: Link) -> Iterator[str]:
        """Yield possible paths of the debug file of the file at `path`."""
        folder = os.path.dirname(path)
        below = (f"{one}{folder}" for one in self.folders)
        return (f"{one}/{link.name}" for one in (folder, f"{folder}/.debug", *below) if f"{one}/{link.name}" != path)


def _open_file(place: FilePlace, build_id: str, link: Optional[Link]) -> Optional[memoryview]:
    """Map the file; None if it is missing or does not match. If the file or the module has no
    build-id, the checksum in `link` is compared."""
    try:
        fd = place.open()
    except (OSError, ValueError):
        return None
    try:
        data = map_file(fd, os.fstat(fd).st_size)
        found = elf.build_id_of_file(data)
    except (OSError, ValueError, TargetError):  # ValueError: an empty file
        return None
    finally:
        os.close(fd)
    if link is None or (found and build_id):
        return data if found and found == build_id else None
    return data if _checksum(data) == link.checksum else None


def _contents(place: FilePlace) -> Optional[elf.Buffer]:
    """Read a file, or map it if it is large. Small files are read because a mapped file keeps a
    descriptor open, and there may be thousands of .dwo files."""
    try:
        fd = place.open()
    except (OSError, ValueError):
        return None
    try:
        size = os.fstat(fd).st_size
        return os.read(fd, size) if size < _MAPPED else map_file(fd, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def _checksum(data: memoryview) -> int:
    import zlib  # imported here: rarely needed

    value = 0
    for at in range(0, len(data), _SLICE):
        value = zlib.crc32(data[at : at + _SLICE], value)
    return value


_C_LIBRARY = re.compile(r"(lib(c|m|mvec|dl|rt|pthread|resolv|util|nsl|anl|crypt|nss_\w+|thread_db)|ld)[-.]")
"""Matches file names of the C library's parts: libc.so.6, libm-2.31.so, ld-musl-x86_64.so.1."""


def is_c_library(module: Module) -> bool:
    """Return whether a module is a part of the C library, by its file name."""
    return _C_LIBRARY.match(os.path.basename(module.path)) is not None


def has_debug_info(data: elf.Buffer) -> bool:
    """Whether a file has debug information (DWARF)."""
    try:
        names = {section.name for section in elf.sections(data, elf.header(data)) if section.type != elf.SHT_NOBITS}
    except TargetError:
        return False
    return bool(names & {".debug_info", ".zdebug_info"})


def debug_link(data: elf.Buffer) -> Optional[Link]:
    """Read a file's .gnu_debuglink: a base name, zeros up to a multiple of 4, and the checksum."""
    raw, head = _section(data, ".gnu_debuglink")
    name = raw.split(b"\0", 1)[0]
    at = (len(name) + 4) // 4 * 4
    if head is None or not name or b"/" in name or len(raw) < at + 4:
        return None
    order = head.prefix == "<"
    return Link(os.fsdecode(name), int.from_bytes(raw[at : at + 4], "little" if order else "big"))


def alternate_link(data: elf.Buffer) -> Optional[Alternate]:
    """Read a file's .gnu_debugaltlink: a path with a final zero, and a build-id."""
    raw, _ = _section(data, ".gnu_debugaltlink")
    path, zero, build_id = raw.partition(b"\0")
    return Alternate(os.fsdecode(path), build_id.hex()) if path and zero and 1 < len(build_id) <= 64 else None


def _section(data: elf.Buffer, name: str) -> tuple[bytes, Optional[elf.Header]]:
    try:
        head = elf.header(data)
        found = next(one for one in elf.sections(data, head) if one.name == name and one.type != elf.SHT_NOBITS)
    except (TargetError, StopIteration):
        return b"", None
    return bytes(data[found.offset : found.offset + min(found.size, 1 << 13)]), head
