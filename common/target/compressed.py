"""Compressed cores, unpacked into an unnamed temporary file, which disappears when it is closed.
A small file may unpack to a very large one, by mistake or to do harm. So each step is of bounded
size, runs of zeros take no space on disk, and a part of the disk's free space stays free. What was
unpacked before damage is used, like a truncated core."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from findleaks.errors import TargetError
from findleaks.formatting import size as human
from findleaks.target.files import FORMATS
from findleaks.target.zstd import Damaged, Frames, Trailing

_STEP = 1 << 16
"""Most bytes unpacked in one step (zstd: a block, 128 KiB). As much may be lost before damage, and
Ctrl-C is noticed this often."""
_BLOCK = 1 << 16  # bytes of a block that becomes a hole where all of them are zero
_ZERO = bytes(_BLOCK)
_KEPT_FREE = 10  # one part in so many of the disk's free space is left free


class _Stream(Protocol):
    """A file that unpacks what it reads: Python's GzipFile, LZMAFile, BZ2File, ZstdFile; Frames."""

    def read1(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end. EOFError where the compressed data are cut off."""
        ...


def unpacked(fd: int, name: str, start: bytes, progress: Callable[[float], None] = lambda part: None) -> tuple[int, str, bool]:
    """Unpack a core. `fd` is taken over and closed; `start` are the file's first bytes.
    Returns a descriptor of the unpacked core; what is wrong with the compressed file ("": nothing);
    and whether a part of the core is missing or may be wrong. `progress` is called at each step
    with the part that is done, and may raise. TargetError if the format is not known, the content
    is no core, or nothing can be unpacked."""
    with io.FileIO(fd) as file:
        stream, errors = _stream(file, name, start)
        try:
            out = _Output(name)
            try:
                warning, partial = _unpack(stream, errors, file, out, progress)
                out.end(warning)
            except BaseException:
                os.close(out.fd)
                raise
        finally:
            if isinstance(stream, _Program):
                stream.close()
        return out.fd, warning, partial


_Errors = tuple[type[Exception], ...]
"""What a stream raises for bad data, beside OSError; EOFError is for data that are cut off."""


def _stream(file: io.FileIO, name: str, start: bytes) -> tuple[_Stream, _Errors]:
    try:
        if start[:3] == b"\x1f\x8b\x08":
            import gzip
            import zlib

            return gzip.GzipFile(fileobj=file), (zlib.error,)
        if start[:6] == b"\xfd7zXZ\0":
            import lzma

            return lzma.LZMAFile(file, format=lzma.FORMAT_XZ), (lzma.LZMAError,)
        if start[:3] == b"BZh":
            import bz2

            return bz2.BZ2File(file), (ValueError,)
    except ImportError as error:
        raise TargetError(f"{name}: this Python cannot unpack it ({error}): unpack it first") from None
    if start[:4] == b"\x28\xb5\x2f\xfd" or (start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F):
        return _zstd(file, name)
    if start[:4] == b"\x04\x22\x4d\x18":
        raise TargetError(f"{name}: packed with lz4: unpack it first (unlz4 {name})")
    if start.startswith(b"SQLite format"[: max(4, len(start))]):
        raise TargetError(
            f"{name}: an SQLite database, as findleaks' snapshots are, which `findleaks diff` compares: a core file is needed"
        )
    raise TargetError(f"{name}: not an ELF file, nor one packed with gzip, zstd, xz or bzip2: a core file is needed")


def _zstd(file: io.FileIO, name: str) -> tuple[_Stream, _Errors]:
    try:
        from compression import zstd  # Python 3.14

        return zstd.ZstdFile(file, options={zstd.DecompressionParameter.window_log_max: 31}), (zstd.ZstdError,)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        return _Program(file, name), (Damaged,)
    return Frames(file, zstandard), (Damaged,)


class _Program:
    """The zstd program, unpacking the file that is its standard input."""

    def __init__(self, file: io.FileIO, name: str) -> None:
        # imported here: gzip, and zstd with the library, need no other program
        import shutil
        import subprocess

        program = shutil.which("zstd")
        if program is None:
            raise TargetError(
                f"{name}: a core packed with zstd needs the zstd program (apt install zstd) or Python's zstandard module; "
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
                raise Damaged(message.splitlines()[-1] if message else f"zstd ended with status {child.returncode}")
        return data

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        with self._child:
            pass


class _DiskFull(Exception):
    """No more may be written to the disk; the text says why."""


class _Output:
    """The unpacked file: unnamed, with holes for zeros. `at` bytes were added, zeros included."""

    def __init__(self, name: str) -> None:
        self.name, self.at = name, 0
        self.fd, self.folder = _unnamed(name)
        found = os.fstatvfs(self.fd)
        self.free = found.f_bavail * found.f_frsize
        self._left = self.free - self.free // _KEPT_FREE
        self._start = b""

    def add(self, data: bytes) -> None:
        """Append data. _DiskFull when the disk is too full, TargetError when this is no core."""
        if len(self._start) < 4:
            self._start += data[:4]
            if not any(self._start.startswith(magic[: len(self._start)]) for magic in FORMATS):
                raise TargetError(f"{self.name}: what is packed in it is not an ELF file: a core file is needed")
        low = 0
        while low < len(data):
            part = data[low : low + _BLOCK - self.at % _BLOCK]
            if not _ZERO.startswith(part):
                self._left -= len(part)
                if self._left < 0:
                    raise _DiskFull(f"of {human(self.free)} that were free a tenth is kept free")
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
        """Give the file its final size; TargetError with the warning when nothing was unpacked."""
        if not self.at:
            raise TargetError(warning or f"{self.name}: there is nothing in the compressed file")
        try:
            os.ftruncate(self.fd, self.at)
        except OSError as error:
            raise TargetError(f"{self.name}: {self.at:,} bytes are more than {self.folder} takes: {error.strerror}") from None


def _unnamed(name: str) -> tuple[int, str]:
    """An unlinked file, and its folder: $TMPDIR, or /var/tmp, since /tmp is often in memory."""
    first = os.environ.get("TMPDIR") or "/var/tmp"
    with suppress(OSError):
        return os.open(first, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600), first
    import tempfile  # most file systems have O_TMPFILE

    for folder in (first, tempfile.gettempdir()):
        try:
            fd, path = tempfile.mkstemp(prefix="findleaks-", dir=folder)
        except OSError:
            continue
        os.unlink(path)
        return fd, folder
    raise TargetError(f"{name}: no folder to unpack it in: set TMPDIR")


def _unpack(stream: _Stream, errors: _Errors, file: io.FileIO, out: _Output, progress: Callable[[float], None]) -> tuple[str, bool]:
    """Unpack to the end, or until an error: the last two results of `unpacked`."""
    size = os.fstat(file.fileno()).st_size
    bad: _Errors = (OSError, Trailing, *errors)
    while True:
        progress(min(file.tell() / max(size, 1), 1.0))
        try:
            data = stream.read1(_STEP)
        except EOFError:
            return f"{out.name}: the compressed file is cut off after {human(out.at)} of the core: the rest is missing.", True
        except bad as error:
            why = " ".join(str(error).split())
            # "Not a gzipped file": gzip.BadGzipFile of a further member
            if isinstance(error, Trailing) or (out.at and why.startswith("Not a gzipped file")):
                return f"{out.name}: the compressed core is followed by other data, which are left out.", False
            where = f"the compressed file is damaged near byte {file.tell():,} of {size:,} ({why})"
            return f"{out.name}: {where}: {human(out.at)} of the core are there, some of it maybe wrong, the rest is missing.", True
        if not data:
            return "", False
        try:
            out.add(data)
        except _DiskFull as error:
            there = f"{human(out.at)} of the core are unpacked in {out.folder}, and there is no space for more ({error})"
            return f"{out.name}: {there}: the rest is missing. Set TMPDIR to a folder on a disk with more space.", True
