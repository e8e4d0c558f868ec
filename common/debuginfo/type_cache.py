"""Cache tables of types in $XDG_CACHE_HOME/findleaks/types, with one file for each build-id, and
one for each set of modules whose tables were merged.

A file that is not complete, or whose checksum is wrong, is ignored and removed. Files are first
written under another name, so several processes may use the directory at once. Files contain only
data from debug information. The total size is limited: the files that have not been used for the
longest time are removed first."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Optional

from findleaks.engine.dwarf_sources import COLUMNS

VERSION = 6  # version of the columns, and of the rules by which they are filled
MAX_BYTES = 1 << 30  # maximum size of all files together
# An unfinished file that is older than this belongs to a process that was killed
_STALE_SECONDS = 3600
# Magic, version, byte order, checksum of the rest, number of columns, bytes of the rest
_HEAD = struct.Struct("<8sIIIIQ")
_MAGIC = b"FLTYPES\n"
_ORDER = int(sys.byteorder == "little")
_WRITTEN = 16 << 20  # Bytes that are written at a time: an interrupt waits for one call.
_ALIGNED = 8  # Columns begin at multiples of this number of bytes.


class TypeCache:
    """The files of this user. Methods never raise; without a usable directory, nothing is
    stored."""

    def __init__(self, environment: Optional[Mapping[str, str]] = None, max_bytes: int = MAX_BYTES) -> None:
        known = os.environ if environment is None else environment
        home = known.get("XDG_CACHE_HOME") or os.path.join(known.get("HOME") or os.path.expanduser("~"), ".cache")
        self.folder = os.path.join(home, "findleaks", "types")
        self._max_bytes = max_bytes

    def keep(self, name: str) -> bool:
        """Mark a file as recently used. Return whether the file exists; it may be damaged."""
        try:
            os.utime(os.path.join(self.folder, name), follow_symlinks=False)
        except OSError:
            return False
        return True

    def load(self, name: str) -> Optional[list[array[int]]]:
        """Return the columns that were stored under a name; None if there are none. The columns are
        views of the file, so nothing is copied. They behave like arrays that cannot be resized."""
        path = os.path.join(self.folder, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(descriptor, "rb"):
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > self._max_bytes:
                return None
            try:
                columns = _unpack(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)) if found.st_size else None
            except (OSError, MemoryError):
                return None
        with suppress(OSError):
            if columns is None:
                os.unlink(path)
            else:
                os.utime(path)  # used now
        return columns

    def store(self, name: str, columns: Sequence[array[int]]) -> None:
        """Store columns under a name."""
        parts = _pack(columns)
        if sum(map(len, parts)) > self._max_bytes // 2 or not self._ready():
            return
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.folder)
            with open(descriptor, "wb") as file:
                for part in parts:
                    for at in range(0, len(part), _WRITTEN):
                        file.write(memoryview(part)[at : at + _WRITTEN])
            os.replace(temporary, os.path.join(self.folder, name))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
        except BaseException:  # The user interrupted it.
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._remove_oldest()

    def _ready(self) -> bool:
        """Whether the directory exists, and belongs only to this user."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            found = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022

    def _remove_oldest(self) -> None:
        with suppress(OSError):
            rows = []
            for entry in os.scandir(self.folder):
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    stale = entry.name.startswith(".") and time.time() - found.st_mtime > _STALE_SECONDS
                    rows.append((-1.0 if stale else found.st_mtime, found.st_size, entry.path))
            left = sum(size for _, size, _ in rows)
            for used, size, path in sorted(rows):
                if used >= 0 and left <= self._max_bytes:
                    break
                with suppress(OSError):
                    os.unlink(path)
                left -= size


def _pack(columns: Sequence[array[int]]) -> list[bytes]:
    lengths = array("Q", [len(column) for column in columns]).tobytes()
    parts = [lengths]
    for column in columns:
        data = column.tobytes()
        parts += [data, bytes(-len(data) % _ALIGNED)]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_HEAD.pack(_MAGIC, VERSION, _ORDER, checksum, len(columns), sum(map(len, parts))), *parts]


def _unpack(data: mmap.mmap) -> Optional[list[array[int]]]:
    """Return views of the columns; None if the file is damaged, or was written by another version
    or for another kind of machine."""
    if len(data) < _HEAD.size:
        return None
    magic, version, order, checksum, count, size = _HEAD.unpack_from(data)
    rest = memoryview(data)[_HEAD.size :]
    known = (magic, version, order, count, size) == (_MAGIC, VERSION, _ORDER, len(COLUMNS), len(rest))
    if not known or zlib.crc32(rest) != checksum:
        return None
    columns: list[array[int]] = []
    lengths, at = array("Q", bytes(rest[: 8 * count])), 8 * count
    for code, length in zip(COLUMNS, lengths):
        end = at + length * array(code).itemsize
        view: Any = rest[at:end]
        columns.append(view.cast(code))
        at = end + -end % _ALIGNED
    return columns
