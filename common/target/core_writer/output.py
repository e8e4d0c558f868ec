"""Write a core file, sparse or compressed. It has a temporary name until it is complete."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from findleaks.errors import Interrupted, TargetError
from findleaks.formatting import size as human

_STEP = 8 << 20  # bytes that are forced to disk between two checks for Ctrl-C
_PACKED = 1 << 20  # bytes packed between two checks for Ctrl-C
_AHEAD = 32 << 20  # bytes after which writing to disk is started
_WRITE, _WAIT_WRITE_WAIT = 2, 7  # SYNC_FILE_RANGE_WRITE; with _WAIT_BEFORE and _WAIT_AFTER
_LONGEST_NAME = 200  # most bytes of the file name that the temporary name includes

Look = Callable[[], None]
"""Callback, called about every 100 ms of work; may raise to end the work."""


class Output(Protocol):
    """A file that is written from beginning to end. Skipped bytes are zeros."""

    def put(self, at: int, data: memoryview) -> None:
        """Write all bytes of `data` at offset `at`, which is not before the end of the previous
        bytes."""
        ...

    def end(self, size: int) -> None:
        """Set the size of the file."""
        ...


class Sparse:
    """A plain file: skipped bytes are holes."""

    def __init__(self, fd: int, look: Look) -> None:
        self._fd, self._look = fd, look
        # Offset up to which writing to disk has been started, and bytes written since then.
        self._started, self._given = 0, 0
        self._libc = _with_sync_file_range()

    def put(self, at: int, data: memoryview) -> None:
        while data:
            done = os.pwrite(self._fd, data, at)
            at, data = at + done, data[done:]
            self._given += done
            if self._given >= _AHEAD and self._libc is not None:
                self._libc.sync_file_range(self._fd, self._started, at - self._started, _WRITE)
                self._started, self._given = at, 0
            self._look()

    def end(self, size: int) -> None:
        os.ftruncate(self._fd, size)


class Packer(Protocol):
    """A stream that is compressed into a file."""

    def write(self, data: memoryview) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None:
        """Free its resources, whether or not the stream is finished."""
        ...


class Packed:
    """A file that is compressed as one stream."""

    def __init__(self, packer: Packer, look: Look) -> None:
        self._packer, self._look = packer, look
        self._at = 0
        self._zeros = memoryview(bytes(_PACKED))

    def put(self, at: int, data: memoryview) -> None:
        self._skip(at)
        self._at += len(data)
        while data:
            self._packer.write(data[:_PACKED])
            data = data[_PACKED:]
            self._look()

    def _skip(self, at: int) -> None:
        while self._at < at:
            size = min(at - self._at, _PACKED)
            self._packer.write(self._zeros[:size])
            self._at += size
            self._look()

    def end(self, size: int) -> None:
        self._skip(size)
        self._packer.finish()


@contextlib.contextmanager
def part_file(path: str, look: Look) -> Iterator[int]:
    """Create a file beside `path`, and yield its descriptor. If the `with` block succeeds, the file
    is forced to disk and renamed to `path`; otherwise it is removed. Its mode is 0600, because
    memory may contain secrets.
    Raises TargetError if a file cannot be created or written."""
    check_path(path)
    folder, name = os.path.split(os.path.abspath(path))
    made, fd = "", -1
    try:
        short = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])
        fd, made = tempfile.mkstemp(prefix=f".{short}.", suffix=".part", dir=folder)
        yield fd
        _synchronise(fd, look)
        os.close(fd)
        fd = -1
        os.replace(made, path)
        made = ""
        _synchronise_folder(folder)
    except OSError as error:
        raise TargetError(f"{path}: {_why(error)}") from None
    except (KeyboardInterrupt, Interrupted):
        if fd >= 0 and made:
            with contextlib.suppress(OSError):
                os.unlink(made)
                made = ""
                _close_elsewhere(fd)
                fd = -1
        raise
    finally:
        if fd >= 0:
            os.close(fd)
        if made:
            with contextlib.suppress(OSError):
                os.unlink(made)


def _close_elsewhere(fd: int) -> None:
    """Close the descriptor of an unlinked file in a short-lived child process. The last close waits
    until the file system has freed the blocks, which takes more than a second for 1 GiB with
    `discard`. The descriptor is also closed in this process, unless OSError is raised."""
    end, begin = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, end, 0), (os.POSIX_SPAWN_DUP2, fd, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        os.posix_spawn("/bin/sh", ["sh", "-c", "read line"], {}, file_actions=actions)
        os.close(fd)
    finally:
        os.close(end)
        os.close(begin)  # read(1) reaches the end of the pipe, and sh exits


def check_path(path: str) -> None:
    """Check that a core can be written to the path. A regular file at the path will be replaced.
    Raises TargetError."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise TargetError(f"{path}: cannot be written: {_plain(error)}") from None
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise TargetError(f"{path}: expected a file, got a directory; name a file in it")
    if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        raise TargetError(f"{path}: not a regular file, so a core cannot replace it; name another file")
    if not os.path.isdir(folder):
        raise TargetError(f"{path}: no such directory: {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TargetError(f"{path}: cannot create a file in {folder}")


def check_space(path: str, size: int) -> None:
    """Check that the disk has space for `size` bytes.
    Raises TargetError."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = os.statvfs(folder)
    except OSError:
        return
    free = found.f_bavail * found.f_frsize
    if size > free:
        raise TargetError(f"{path}: the core needs {human(size)}, but only {human(free)} are free in {folder}; nothing was written")


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the core does not fit: {_plain(error)}; the partial file was removed"
    if error.errno == errno.EFBIG:
        return "the core exceeds the largest file size (ulimit -f, or the file system's limit); the partial file was removed"
    return f"cannot be written: {_plain(error)}"


def _plain(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _synchronise(fd: int, look: Look) -> None:
    """Force the file to disk, in steps: a single fsync(2) may take minutes, and ignores signals."""
    libc = _with_sync_file_range()
    if libc is not None:
        size, at = os.fstat(fd).st_size, 0
        with contextlib.suppress(OSError):
            while at < size:
                at = os.lseek(fd, at, os.SEEK_DATA)  # OSError: only a hole is left
                libc.sync_file_range(fd, at, _STEP, _WAIT_WRITE_WAIT)
                at += _STEP
                look()
    os.fsync(fd)


def _with_sync_file_range() -> Any:
    """Return the C library if it has sync_file_range(2), else None."""
    libc: Any = ctypes.CDLL(None)
    if not hasattr(libc, "sync_file_range"):
        return None
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return libc


def _synchronise_folder(folder: str) -> None:
    """Force the new name to disk. Some file systems do not support this, and do not need it."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
