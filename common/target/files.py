"""Open files that a target names, and read files of /proc.

A core, or a process in a container, may name any path. Only regular files are opened: opening a
FIFO, a terminal or a device may block or have side effects. Reading some files of kernel file
systems (/proc/kmsg, trace_pipe) may also block. A remote file system may not answer, or may be
mounted on access (/net/HOST of autofs). Therefore findleaks does not access a path that a core
names if it is on a kernel or remote file system.

A path of the target stays below the folder that serves as its "/", as with chroot(2): ".." does not
leave it, and absolute symbolic links are resolved below it (path_resolution(7))."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Optional

from findleaks.errors import UsageError
from findleaks.value_classes import NamedTuple

ELF, MINIDUMP = b"\x7fELF", b"MDMP"
FORMATS = (ELF, MINIDUMP)
"""Magic numbers of the supported images: cores and minidumps."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_LINKS = 40  # most symbolic links followed in one path, as in Linux


_KERNELS = {
    *("proc", "sysfs", "tracefs", "debugfs", "configfs", "securityfs", "selinuxfs", "cgroup", "cgroup2", "bpf", "pstore"),
    *("efivarfs", "fusectl", "binfmt_misc", "mqueue", "rpc_pipefs", "nfsd", "functionfs"),
}
_REMOTE = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "lustre", "beegfs", "autofs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.davfs", "fuse.curlftpfs", "fuse.ceph"),
}
_FOREIGN = frozenset(_KERNELS | _REMOTE)
"""Types of kernel file systems and of remote file systems."""


class DamagedFile(Exception):
    """The data of a compressed file are invalid; the text explains why."""


class TrailingData(Exception):
    """Other data follow a complete frame (zstd) or member (gzip) of a compressed file."""


class FilePlace(NamedTuple):
    """A possible location of a file: `path`, below the folder `root` if that is not "". If `root`
    is "", the folders `shunned`, and all folders below them, are not entered."""

    path: str
    root: str = ""
    shunned: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The path for messages."""
        return f"{self.root.rstrip('/')}/{self.path.lstrip('/')}" if self.root else self.path

    def open(self) -> int:
        """Open the regular file, and return a descriptor.
        Raises OSError if it is missing or not regular, ValueError if the path is malformed."""
        if self.root:
            return _within(self.root, self.path)
        return _within("/", self.path, self.shunned) if self.shunned else open_regular(self.path)


def foreign_mounts(near: str) -> frozenset[str]:
    """Return the mount points of kernel file systems and of remote ones. Mount points that contain
    the file `near` are omitted, because findleaks already reads from them."""
    try:
        table = read_file("/proc/self/mountinfo")
    except OSError:
        return frozenset()
    near = os.path.realpath(near)
    kinds: dict[str, str] = {}  # by mount point: the last mount hides the others
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields = before.split()
        if len(fields) > 4 and after:
            point = fields[4]
            if b"\\" in point:
                point = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)
            kinds[os.fsdecode(point)] = os.fsdecode(after.split()[0])
    return frozenset(at for at, kind in kinds.items() if kind in _FOREIGN and not is_below(near, at))


def is_below(path: str, folder: str) -> bool:
    """Whether `folder` is a prefix of `path`, by components."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def open_regular(path: str, folder: Optional[int] = None, follow: bool = True) -> int:
    """Open a regular file for reading; return its descriptor. OSError if it is not regular. The
    type is checked before and after opening, because the file may be replaced in between."""
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


def _within(root: str, path: str, shunned: frozenset[str] = frozenset()) -> int:
    """Open the file at `path` as a process with the root folder `root` would do."""
    folders = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    parts, links = path.split("/")[::-1], 0
    names: list[str] = []  # names of `folders` without the first
    try:
        while parts:
            name = parts.pop()
            if name in ("", "."):
                continue
            if name == "..":
                _close_below(folders, max(len(folders) - 1, 1))
                del names[len(folders) - 1 :]
                continue
            if f"/{'/'.join([*names, name])}" in shunned:
                raise OSError(errno.EREMOTE, "not on a local disk", path)
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folders[-1])
            mode = os.fstat(found).st_mode
            if stat.S_ISDIR(mode):
                folders.append(found)
                names.append(name)
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
                names.clear()
            parts += target.split("/")[::-1]
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        _close_below(folders, 0)


def _close_below(folders: list[int], depth: int) -> None:
    while len(folders) > depth:
        os.close(folders.pop())


def file_state(fd: int) -> tuple[int, ...]:
    """Return values that identify the content of a file. They change if the file is replaced or
    written to."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_file(path: str) -> bytes:
    """Read all bytes of a file, including files without a size, such as those of /proc."""
    with open(path, "rb") as file:
        return file.read()


def read_user_file(path: str, most: int, what: str) -> bytes:
    """Read a regular file that the user names. Messages call it `what` ("a hint file"). Raises
    UsageError if that fails, or if the file has more than `most` bytes."""
    try:
        with open(os.open(path, _FLAGS), "rb") as file:
            _require_regular(os.fstat(file.fileno()).st_mode, path)
            data = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > most:
        raise UsageError(f"{path}: {what} has at most {most >> 20} MiB")
    return data


def read_memory(memory: int, address: int, size: int) -> bytes:
    """Return the bytes that can be read from an address, by a descriptor of /proc/PID/mem; b"" if
    none can."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):  # the address of vsyscall does not fit in an off_t
        return b""
