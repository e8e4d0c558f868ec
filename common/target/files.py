"""The door to files that a target names: a core, or a process in a container, may name any path it likes.

Only regular files are opened, since a FIFO, a terminal or a device may block, or do something when it is opened. A path of the target
stays below the folder that stands for its "/", as it would behind chroot(2): ".." does not leave it, and what absolute symbolic links
name lies below it, too (path_resolution(7)).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Optional

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_LINKS = 40
"""As many symbolic links as Linux follows in one path."""


class Place(NamedTuple):
    """Where a file may lie: at `path`, below the folder `root` if that is not ""."""

    path: str
    root: str = ""

    @property
    def name(self) -> str:
        """The path for messages."""
        return f"{self.root.rstrip('/')}/{self.path.lstrip('/')}" if self.root else self.path

    def open(self) -> int:
        """A descriptor of the regular file there; OSError, or ValueError of a path that is none, where there is no such file."""
        return _within(self.root, self.path) if self.root else open_regular(self.path)


def open_regular(path: str, folder: Optional[int] = None, follow: bool = True) -> int:
    """A descriptor of a regular file for reading; OSError where it is something else. It is looked at before it is opened, and again when
    it is open, as it may have been replaced meanwhile."""
    _check(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode, path)
    fd = os.open(path, _FLAGS | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)
    try:
        _check(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _within(root: str, path: str) -> int:
    """The file at `path` for a process whose root folder is `root`."""
    folders = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    parts, links = path.split("/")[::-1], 0
    try:
        while parts:
            name = parts.pop()
            if name in ("", "."):
                continue
            if name == "..":
                _leave(folders, max(len(folders) - 1, 1))
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
                _leave(folders, 1)
            parts += target.split("/")[::-1]
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        _leave(folders, 0)


def _leave(folders: list[int], depth: int) -> None:
    while len(folders) > depth:
        os.close(folders.pop())


def state(fd: int) -> tuple[int, ...]:
    """Changes when another file is there, or it was written to."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
