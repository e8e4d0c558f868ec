"""List the C engine's libraries, one for each word size and byte order of targets, and compute a
checksum of their common C sources.

In a checkout the checksum is computed; installed packages have it in a file. The build passes it to
the compiler (FL_SOURCES), and the library returns it (fl_sources). The Makefile and setup.py run
this file by its path, so it imports only the standard library. The checksum is CRC-32, because it
only has to identify builds, and must be fast: all sources are read at each start."""

from __future__ import annotations

import os
import zlib
from typing import Optional

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "native")  # exists in a checkout, not in installed packages
VARIANTS = {  # (bytes of a word, byte order): suffix of the library's name
    (8, "little"): "",
    (4, "little"): "_32",
    (8, "big"): "_big",
    (4, "big"): "_32_big",
}
PACKAGED = os.path.join(HERE, "sources.crc")  # checksum of an installed package


def checksum(folder: str = FOLDER) -> int:
    """Return the CRC-32 of a folder's C files, headers and compiler flags, with their names.
    OSError if there are none."""
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h")) or name == "flags")
    return zlib.crc32(b"".join(part for name in names for part in (name.encode(), b"\0", _contents(os.path.join(folder, name)))))


def library_name(word: int, byteorder: str, name: str = "_native.so") -> str:
    """Return the file name, or path, of the library for targets with this word size (in bytes) and
    byte order. `name`: the file name, or path, of the library for x86-64."""
    stem, ending = os.path.splitext(name)
    return stem + VARIANTS[word, byteorder] + ending


def options() -> dict[str, list[str]]:
    """Return, by file name, the macros with which each library is compiled
    (../../native/native.h)."""
    source = f"-DFL_SOURCES={checksum():#010x}"
    return {library_name(*one): [f"-DWORD={one[0]}u", f"-DBIG={int(one[1] == 'big')}", source] for one in VARIANTS}


def read_checksum() -> Optional[int]:
    """Return the checksum that the library must have; None if there are neither sources nor the
    packaged file."""
    try:
        return checksum()
    except OSError:
        pass
    try:
        return int(_contents(PACKAGED), 16)
    except (OSError, ValueError):
        return None


def _contents(path: str) -> bytes:
    """Return the contents of a file. This takes a third less time than a file object."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size + 1)
    finally:
        os.close(descriptor)
