"""Sources of the C engine's libraries: one for each word size and byte order of targets, from
the same C sources, and a checksum of these.

It is computed in a checkout; installed packages have it in a file. The build passes it to the
compiler (FL_SOURCES), the library returns it (fl_sources). The Makefile and setup.py run this file
by its path, so it imports the standard library only. CRC-32 identifies builds, no more, and is
fast: all sources are read at each start."""

from __future__ import annotations

import os
import zlib
from typing import Optional

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "native")  # of a checkout; packages have none
VARIANTS = {  # (bytes of a word, byte order): what its library's name ends with
    (8, "little"): "",
    (4, "little"): "_32",
    (8, "big"): "_big",
    (4, "big"): "_32_big",
}
PACKAGED = os.path.join(HERE, "sources.crc")  # an installed package's checksum


def checksum(folder: str = FOLDER) -> int:
    """CRC-32 of a folder's C files, headers and compiler flags, with names; OSError without any."""
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h")) or name == "flags")
    return zlib.crc32(b"".join(part for name in names for part in (name.encode(), b"\0", _contents(os.path.join(folder, name)))))


def library_name(word: int, byteorder: str, name: str = "_native.so") -> str:
    """The file name, or path, of the library for such targets, where `name` is that for x86-64."""
    stem, ending = os.path.splitext(name)
    return stem + VARIANTS[word, byteorder] + ending


def options() -> dict[str, list[str]]:
    """By file name, the macros that each is compiled with (../../native/native.h)."""
    source = f"-DFL_SOURCES={checksum():#010x}"
    return {library_name(*one): [f"-DWORD={one[0]}u", f"-DBIG={int(one[1] == 'big')}", source] for one in VARIANTS}


def wanted() -> Optional[int]:
    """The checksum the library must have; None with neither sources nor the packaged file."""
    try:
        return checksum()
    except OSError:
        pass
    try:
        return int(_contents(PACKAGED), 16)
    except (OSError, ValueError):
        return None


def _contents(path: str) -> bytes:
    """A third faster than with a file object."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size + 1)
    finally:
        os.close(descriptor)
