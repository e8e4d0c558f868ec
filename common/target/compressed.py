"""Unpack compressed cores into an unnamed temporary file, which disappears when it is closed.
A small file may unpack to a very large one, by mistake or on purpose. Therefore each step has a
limited size, runs of zeros take no disk space, and part of the disk stays free. If the compressed
file is damaged, the part before the damage is used, like a truncated core."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Optional, Protocol

from findleaks.errors import TargetError
from findleaks.formatting import size as human
from findleaks.target.files import FORMATS, DamagedFile, TrailingData

_STEP = 1 << 16
"""Most bytes unpacked in one step (zstd: one block, 128 KiB). If the file is damaged, at most this
much of the data before the damage is lost. Ctrl-C is checked once per step and once per read."""
_BLOCK = 1 << 16  # bytes of a block that becomes a hole if all of it is zeros
_ZERO = bytes(_BLOCK)
_KEPT_FREE = 10  # a tenth of the free disk space stays free


class _WatchedFile(io.FileIO):
    """A compressed file. `check` is called before each read and may raise, because much compressed
    data, such as empty members, may unpack to nothing."""

    check: Callable[[], None]

    def read(self, size: Optional[int] = -1, /) -> bytes:
        self.check()
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int:
        self.check()
        return super().readinto(buffer)


class _Stream(Protocol):
    """A file that returns its unpacked contents: Python's LZMAFile, BZ2File or ZstdFile, or Members
    or Frames."""

    def read1(self, size: int) -> bytes:
        """Return up to `size` bytes; b"" at the end. EOFError if the compressed data are cut
        off."""
        ...


def unpack_core(fd: int, name: str, start: bytes, progress: Callable[[float], None] = lambda part: None) -> tuple[int, str, bool]:
    """Unpack a core. Takes over and closes `fd`; `start` is the first bytes of the file.
    Returns three values: a descriptor of the unpacked core; a description of the defect of the
    compressed file ("": none); and whether a part of the core is missing or may be wrong.
    `progress` is called at each step with the completed part, and may raise.
    Raises TargetError if the format is unknown, the content is not a core, or nothing can be
    unpacked."""
    with _WatchedFile(fd) as file:
        file.check = lambda: progress(min(file.tell() / max(os.fstat(fd).st_size, 1), 1.0))
        stream, errors = _stream(file, name, start)
        try:
            out = _Output(name)
            try:
                warning, partial = _unpack(stream, errors, file, out)
                out.end(warning)
            except BaseException:
                os.close(out.fd)
                raise
        finally:
            if isinstance(stream, _Program):
                stream.close()
        return out.fd, warning, partial


_Errors = tuple[type[Exception], ...]
"""Exceptions, in addition to OSError, that a stream raises for bad data; EOFError means cut-off
data."""


def _stream(file: io.FileIO, name: str, start: bytes) -> tuple[_Stream, _Errors]:
    try:
        if start[:3] == b"\x1f\x8b\x08":
            import zlib

            from findleaks.target.gzip_members import Members

            return Members(file), (zlib.error,)
        if start[:6] == b"\xfd7zXZ\0":
            import lzma

            return lzma.LZMAFile(file, format=lzma.FORMAT_XZ), (lzma.LZMAError,)
        if start[:3] == b"BZh":
            import bz2

            return bz2.BZ2File(file), (ValueError,)
    except ImportError as error:
        raise TargetError(f"{name}: this Python cannot unpack it ({error}); unpack it first") from None
    if start[:4] == b"\x28\xb5\x2f\xfd" or (start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F):
        return _zstd(file, name)
    if start[:4] == b"\x04\x22\x4d\x18":
        raise TargetError(f"{name}: compressed with lz4; unpack it first (unlz4 {name})")
    if start.startswith(b"SQLite format"[: max(4, len(start))]):
        raise TargetError(f"{name}: expected a core file, got an SQLite database; compare findleaks snapshots with `findleaks diff`")
    raise TargetError(f"{name}: expected a core file: not an ELF file, nor one compressed with gzip, zstd, xz or bzip2")


def _zstd(file: io.FileIO, name: str) -> tuple[_Stream, _Errors]:
    try:
        from compression import zstd  # Python 3.14

        return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: 31}), (zstd.ZstdError,)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        return _Program(file, name), (DamagedFile,)
    from findleaks.target.zstd import Frames

    return Frames(file, zstandard), (DamagedFile,)


class _Program:
    """Runs the zstd program, with the compressed file as its standard input."""

    def __init__(self, file: io.FileIO, name: str) -> None:
        # Imported here because only zstd without a Python module needs to start a program
        import shutil
        import subprocess

        program = shutil.which("zstd")
        if program is None:
            raise TargetError(
                f"{name}: compressed with zstd; install the zstd program (apt install zstd) or Python's zstandard module, "
                "or unpack it first"
            )
        pipe, environment = subprocess.PIPE, {**os.environ, "LC_ALL": "C"}
        self._child = subprocess.Popen([program, "-dcq", "--long=31"], stdin=file, stdout=pipe, stderr=pipe, env=environment)

    def read1(self, size: int) -> bytes:
        child = self._child
        assert isinstance(child.stdout, io.BufferedReader)
        assert child.stderr is not None
        data = child.stdout.read1(size)
        if not data:
            message = child.stderr.read(4096).decode("utf-8", "replace").strip()
            if child.wait():
                raise DamagedFile(message.splitlines()[-1] if message else f"zstd ended with status {child.returncode}")
        return data

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        with self._child:
            pass


class _DiskFull(Exception):
    """The disk is too full to write more; the text states the limit."""


class _Output:
    """The unpacked file, which has no name, and has holes for zeros. `at` is the number of bytes
    added so far, zeros included."""

    def __init__(self, name: str) -> None:
        self.name, self.at = name, 0
        self.fd, self.folder = _create_unlinked(name)
        found = os.fstatvfs(self.fd)
        self.free = found.f_bavail * found.f_frsize
        self._left = self.free - self.free // _KEPT_FREE
        self._start = b""

    def add(self, data: bytes) -> None:
        """Append data. Raises _DiskFull if the disk is too full, TargetError if this is not a
        core."""
        if len(self._start) < 4:
            self._start += data[:4]
            if not any(self._start.startswith(magic[: len(self._start)]) for magic in FORMATS):
                raise TargetError(f"{self.name}: expected a core file: the unpacked content is not an ELF file")
        low = 0
        while low < len(data):
            part = data[low : low + _BLOCK - self.at % _BLOCK]
            if not _ZERO.startswith(part):
                self._left -= len(part)
                if self._left < 0:
                    raise _DiskFull(f"a tenth of the {human(self.free)} of free space is reserved")
                self._write(part)
            self.at += len(part)
            low += len(part)

    def _write(self, part: bytes) -> None:
        view, done = memoryview(part), 0
        try:
            while done < len(view):
                done += os.pwrite(self.fd, view[done:], self.at + done)
        except OSError as error:
            raise _DiskFull(error.strerror or str(error)) from None

    def end(self, warning: str) -> None:
        """Set the final size of the file; TargetError with the warning if nothing was unpacked."""
        if not self.at:
            raise TargetError(warning or f"{self.name}: the compressed file is empty")
        try:
            os.ftruncate(self.fd, self.at)
        except OSError as error:
            raise TargetError(f"{self.name}: {self.at:,} bytes do not fit into {self.folder}: {error.strerror}") from None


def _create_unlinked(name: str) -> tuple[int, str]:
    """Create an unlinked file in $TMPDIR, or in /var/tmp, since /tmp is often in memory.
    Returns its descriptor and its folder."""
    first = os.environ.get("TMPDIR") or "/var/tmp"
    with suppress(OSError):
        return os.open(first, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600), first
    import tempfile  # only needed if the file system does not support O_TMPFILE

    for folder in (first, None):  # None: the folder that `tempfile` finds, if any is writable
        try:
            fd, path = tempfile.mkstemp(prefix="findleaks-", dir=folder)
        except OSError:
            continue
        os.unlink(path)
        return fd, os.path.dirname(path)
    raise TargetError(f"{name}: no directory to unpack it in; set TMPDIR")


def _unpack(stream: _Stream, errors: _Errors, file: _WatchedFile, out: _Output) -> tuple[str, bool]:
    """Unpack up to the end or the first error. Return the last two results of `unpack_core`."""
    size = os.fstat(file.fileno()).st_size
    bad: _Errors = (OSError, TrailingData, *errors)
    while True:
        file.check()
        try:
            data = stream.read1(_STEP)
        except EOFError:
            return f"{out.name}: the compressed file is cut off after {human(out.at)} of the core; the rest is missing.", True
        except bad as error:
            why = " ".join(str(error).split())
            if isinstance(error, TrailingData):
                return f"{out.name}: the compressed core is followed by other data, which are ignored.", False
            where = f"the compressed file is damaged near byte {file.tell():,} of {size:,} ({why})"
            return f"{out.name}: {where}: {human(out.at)} of the core were read, and their end may be wrong; the rest is missing.", True
        if not data:
            return "", False
        try:
            out.add(data)
        except _DiskFull as error:
            there = f"{human(out.at)} of the core were unpacked in {out.folder}, then disk space ran out ({error})"
            return f"{out.name}: {there}; the rest is missing. Set TMPDIR to a directory on a larger disk.", True
