"""Opens files that a target names; reads files of /proc.

A core, or a process in a container, may name any path. Only regular files are opened: opening a
FIFO, a terminal or a device may block, or have effects. A path of the target stays below the folder
that serves as its "/", as with chroot(2): ".." does not leave it, and absolute symbolic links are
resolved below it (path_resolution(7))."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Optional

ELF, MINIDUMP = b"\x7fELF", b"MDMP"
FORMATS = (ELF, MINIDUMP)
"""The magic numbers of the images that are read: cores and minidumps."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_LINKS = 40  # symbolic links followed in one path, as many as Linux follows


class Place(NamedTuple):
    """Where a file may be: at `path`, below the folder `root` if that is not ""."""

    path: str
    root: str = ""

    @property
    def name(self) -> str:
        """The path for messages."""
        return f"{self.root.rstrip('/')}/{self.path.lstrip('/')}" if self.root else self.path

    def open(self) -> int:
        """A descriptor of the regular file; OSError if there is none, ValueError if malformed."""
        return _within(self.root, self.path) if self.root else open_regular(self.path)


def open_regular(path: str, folder: Optional[int] = None, follow: bool = True) -> int:
    """A descriptor of a regular file for reading; OSError where it is something else.
    Checked before opening, and again on the open file, which may have been replaced meanwhile."""
    _require_regular(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode, path)
    fd = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    try:
        _require_regular(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_regular(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _within(root: str, path: str) -> int:
    """Open the file at `path` as a process would whose root folder is `root`."""
    folders = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    parts, links = path.split("/")[::-1], 0
    try:
        while parts:
            name = parts.pop()
            if name in ("", "."):
                continue
            if name == "..":
                _close_below(folders, max(len(folders) - 1, 1))
                continue
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folders[-1])
            mode = os.fstat(found).st_mode
            if stat.S_ISDIR(mode):
                folders.append(found)
                continue
            try:
                target = os.readlink("", dir_fd=found) if stat.S_ISLNK(mode) else ""
            finally:
                os.close(found)
            if not target:
                if any(parts):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                return open_regular(name, folders[-1], follow=False)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                _close_below(folders, 1)
            parts += target.split("/")[::-1]
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        _close_below(folders, 0)


def _close_below(folders: list[int], depth: int) -> None:
    while len(folders) > depth:
        os.close(folders.pop())


def state(fd: int) -> tuple[int, ...]:
    """Identity of an open file's content: changes when the file is replaced or written to."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def content(path: str) -> bytes:
    """All bytes of a file, also of one that has no size, as those of /proc."""
    with open(path, "rb") as file:
        return file.read()


def memory_at(memory: int, address: int, size: int) -> bytes:
    """What can be read at an address, by a descriptor of /proc/PID/mem; b"" if there is nothing."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):  # vsyscall's offset does not fit in an off_t
        return b""
