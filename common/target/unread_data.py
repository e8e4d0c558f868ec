"""Read data that a process has sent to itself and not received yet, in pipes, Unix sockets and
message queues, and the content of memfds that it has not mapped.

A pointer that one thread sends to another exists only in the kernel until it is received. Nothing
is consumed, and no descriptor is opened a second time:

- pidfd_getfd(2) (Linux 5.6) duplicates a descriptor of the process;
- tee(2) copies the content of a pipe, and MSG_PEEK the bytes of a stream socket or the first
  message of another socket;
- MSG_COPY (msgrcv(2), CONFIG_CHECKPOINT_RESTORE) copies messages of a System V queue;
- pread(2) reads a memfd. A process can store pointers in one, unmap it, and map it again later.

A POSIX message queue reports the number of unread bytes only (mq_overview(7))."""

from __future__ import annotations

import _socket as socket  # for its constants; importing `socket` would take milliseconds
import ctypes
import fcntl
import os
import re
import stat
import termios
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from findleaks.target.base import MEMFD
from findleaks.target.files import read_file

_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # numbers of the system calls on every architecture
_PIDFD_THREAD = os.O_EXCL  # pidfd_open accepts any thread (Linux 6.9)
_GET_PIPE_SIZE, _SET_PIPE_SIZE = 1032, 1031  # F_GETPIPE_SZ, F_SETPIPE_SZ (linux/fcntl.h)
_PEEK_OFFSET = 42  # SO_PEEK_OFF (asm-generic/socket.h)
_NO_WAIT = 2  # SPLICE_F_NONBLOCK
_MSG_COPY, _IPC_NOWAIT = 0o40000, 0o4000  # linux/msg.h, linux/ipc.h
_QUEUE_FILE = 80  # FILENT_SIZE of ipc/mqueue.c: size of each file of the mqueue file system
_UNNAMED = re.compile(rb"^[0-9a-f]+: \S+ \S+ \S+ \S+ (?:01|03) +(\d+)$", re.MULTILINE)
"""Matches lines of /proc/PID/net/unix about sockets that have no name and are not listening, such
as those of socketpair."""
_MAPPED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +/memfd:", re.MULTILINE)
"""Matches the lines of /proc/PID/maps that describe memfds; captures start, end and inode."""
_STATUS = re.compile(rb"QSIZE:(\d+) +NOTIFY:\d+ +SIGNO:\d+ +NOTIFY_PID:(\d+)")
_MOST_OBJECTS = 4096  # most pipes and sockets that are examined
_MOST_BYTES = 16 << 20  # most bytes read in total

PIPE, SOCKET, QUEUE = "unread pipe", "unread socket", "unread message queue"
"""Objects with data that cannot be read, or only in part."""
UNEXAMINED = "unexamined pipe or socket"
UNMAPPED = "memfd that is not mapped"
_BLOCK = 512  # unit of st_blocks in bytes


class UnreadData(NamedTuple):
    """Unread data of one kernel object. `holder` is a name such as "pipe, descriptor 5".
    `is_memory`: whether the data is the memory of a memfd, so that pointers in it are at multiples
    of the word size."""

    holder: str
    data: bytes
    is_memory: bool = False


class UnreadReader:
    """Reads the unread data of one process. With `is_running`, the process is not stopped. In this
    case, descriptors that are registered with epoll are not duplicated, because the registration
    would remain if the process closed the original."""

    def __init__(self, pid: int, is_running: bool = False) -> None:
        self.is_running = is_running
        self._pid = pid
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._left = _MOST_BYTES
        self._pidfd, self._folder = -1, ""
        self._count: Callable[[str], None] = lambda name: None

    def read(self, folder: str, descriptors: Sequence[tuple[int, str]], count: Callable[[str], None]) -> Iterator[UnreadData]:
        """Yield the data of these descriptors, given as (number, link target), and of the System V
        queues of the process. `folder` is the /proc folder of a living thread. `count` is called
        with the name of each object whose data cannot be read."""
        self._folder, self._count, tid = folder, count, int(os.path.basename(folder))
        candidates = self._candidates(descriptors)
        memfds = self._unmapped_memfds(descriptors)
        if candidates or memfds:
            self._pidfd = self._libc.syscall(_PIDFD_OPEN, tid, 0 if tid == self._pid else _PIDFD_THREAD)
        try:
            yield from self._descriptors(candidates)
            yield from self._memfds(memfds)
        finally:
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        yield from self._system_v()

    def _descriptors(self, candidates: Mapping[str, Sequence[int]]) -> Iterator[UnreadData]:
        for number, (link, ends) in enumerate(candidates.items()):
            if self._pidfd < 0 or number >= _MOST_OBJECTS:
                # Threads of the process can pass pointers through a pipe only if it has both ends.
                if len(ends) > 1 or not link.startswith("pipe:"):
                    self._count(UNEXAMINED)
                continue
            for descriptor in ends:
                copy = self._libc.syscall(_PIDFD_GETFD, self._pidfd, descriptor, 0)
                if copy < 0:
                    self._count(UNEXAMINED)
                    break
                try:
                    done, found = self._examine(copy, link, descriptor)
                except OSError:
                    self._count(UNEXAMINED)
                    break
                finally:
                    os.close(copy)
                if found:
                    yield found
                if done:
                    break

    def _candidates(self, descriptors: Sequence[tuple[int, str]]) -> Mapping[str, list[int]]:
        """Return, for each pipe, unnamed Unix socket and message queue, its descriptors."""
        found: dict[str, list[int]] = {}
        sockets = self._sockets() if any(link.startswith("socket:[") for _, link in descriptors) else frozenset()
        for descriptor, link in descriptors:
            is_queue = link.startswith("/") and link.count("/") == 1 and self._is_queue(descriptor)
            if link.startswith("pipe:[") or link[8:-1] in sockets or is_queue:
                found.setdefault(link, []).append(descriptor)
        return found

    def _unmapped_memfds(self, descriptors: Sequence[tuple[int, str]]) -> Mapping[int, tuple[int, int]]:
        """Return a descriptor and the size of each memfd that is not completely mapped, by
        inode."""
        found: dict[int, tuple[int, os.stat_result]] = {}
        for descriptor, link in descriptors:
            if link.startswith(MEMFD):
                try:
                    status = os.stat(f"{self._folder}/fd/{descriptor}")
                except OSError:
                    continue
                found.setdefault(status.st_ino, (descriptor, status))
        mapped = self._mapped_memfds() if found else {}
        used = {inode: min(status.st_size, status.st_blocks * _BLOCK) for inode, (_, status) in found.items()}
        return {inode: (descriptor, status.st_size) for inode, (descriptor, status) in found.items() if mapped.get(inode, 0) < used[inode]}

    def _mapped_memfds(self) -> dict[int, int]:
        """Return the number of mapped bytes of each memfd, by inode."""
        found: dict[int, int] = {}
        try:
            text = read_file(f"{self._folder}/maps")
        except OSError:
            return found
        for match in _MAPPED.finditer(text):
            start, end, inode = int(match[1], 16), int(match[2], 16), int(match[3])
            found[inode] = found.get(inode, 0) + end - start
        return found

    def _memfds(self, memfds: Mapping[int, tuple[int, int]]) -> Iterator[UnreadData]:
        for descriptor, size in memfds.values():
            copy = self._libc.syscall(_PIDFD_GETFD, self._pidfd, descriptor, 0) if self._pidfd >= 0 and size <= self._left else -1
            if copy < 0:
                self._count(UNMAPPED)
                continue
            try:
                data = os.pread(copy, size, 0)
            except OSError:
                data = b""
            finally:
                os.close(copy)
            self._left -= len(data)
            if len(data) < size:
                self._count(UNMAPPED)
            yield UnreadData(f"memfd that is not mapped, descriptor {descriptor}", data, is_memory=True)

    def _sockets(self) -> frozenset[str]:
        try:
            text = read_file(f"{self._folder}/net/unix")
        except OSError:
            return frozenset()
        return frozenset(match[1].decode() for match in _UNNAMED.finditer(text))

    def _is_queue(self, descriptor: int) -> bool:
        try:
            status = os.stat(f"{self._folder}/fd/{descriptor}")
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == _QUEUE_FILE and not os.major(status.st_dev)

    def _examine(self, copy: int, link: str, descriptor: int) -> tuple[bool, Optional[UnreadData]]:
        """Return two values: whether the other descriptors of the object can be skipped, and the
        data found."""
        if link.startswith("/"):
            status = _STATUS.match(os.pread(copy, _QUEUE_FILE, 0))
            if status and (int(status[1]) or int(status[2]) == self._pid):
                self._count(QUEUE)
            return True, None
        unread = array("i", [0])
        fcntl.ioctl(copy, termios.FIONREAD, unread)
        if not unread[0]:
            return True, None
        if unread[0] > self._left:
            self._count(UNEXAMINED)
            return True, None
        self._left -= unread[0]
        if link.startswith("socket:"):
            data = self._peek(copy, unread[0])
            return True, UnreadData(f"socket, descriptor {descriptor}", data) if data else None
        if fcntl.fcntl(copy, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            return False, None  # tee needs the reading end, and this process lacks it
        data = self._tee(copy, unread[0])
        return True, UnreadData(f"pipe, descriptor {descriptor}", data)

    def _peek(self, copy: int, size: int) -> bytes:
        value, length = ctypes.c_int(-1), ctypes.c_uint(4)
        self._libc.getsockopt(copy, socket.SOL_SOCKET, _PEEK_OFFSET, ctypes.byref(value), ctypes.byref(length))
        kind = ctypes.c_int(0)
        self._libc.getsockopt(copy, socket.SOL_SOCKET, socket.SO_TYPE, ctypes.byref(kind), ctypes.byref(length))
        if value.value >= 0:  # peeking would move this offset
            self._count(SOCKET)
            return b""
        buffer = ctypes.create_string_buffer(size)
        got = self._libc.recv(copy, buffer, ctypes.c_size_t(size), socket.MSG_PEEK | socket.MSG_DONTWAIT)
        # FIONREAD counts all messages of a SOCK_SEQPACKET socket, but only the first message of a
        # SOCK_DGRAM socket.
        if got < size or kind.value == socket.SOCK_DGRAM:
            self._count(SOCKET)
        return buffer.raw[: max(got, 0)]

    def _tee(self, copy: int, size: int) -> bytes:
        reader, writer = os.pipe()
        try:
            # A pipe is a ring of pages. The copy needs the same number of pages, even if they are
            # not full.
            self._libc.fcntl(writer, _SET_PIPE_SIZE, self._libc.fcntl(copy, _GET_PIPE_SIZE))
            got = self._libc.tee(copy, writer, ctypes.c_size_t(size), _NO_WAIT)
            if got < size:
                self._count(PIPE)
            data = b""
            while len(data) < got and (part := os.read(reader, got - len(data))):
                data += part
            return data
        finally:
            os.close(reader)
            os.close(writer)

    def _system_v(self) -> Iterator[UnreadData]:
        """Yield the messages of System V queues to which this process was the last to send."""
        try:
            rows = [line.split() for line in read_file("/proc/sysvipc/msg").splitlines()[1:]]
            if os.readlink(f"{self._folder}/ns/ipc") != os.readlink("/proc/self/ns/ipc"):
                return
        except OSError:
            return
        for row in rows:
            identity, size, messages, sender = (int(row[at]) for at in (1, 3, 4, 5))
            if sender == self._pid and messages:
                copied = self._copy_messages(identity, size, messages) if size <= self._left else b""
                self._left -= len(copied)
                if len(copied) < size:
                    self._count(QUEUE)
                yield UnreadData(f"message queue {identity}", copied)

    def _copy_messages(self, queue: int, size: int, messages: int) -> bytes:
        word = ctypes.sizeof(ctypes.c_long)  # bytes of mtype, which begins each message
        buffer = ctypes.create_string_buffer(word + size)
        found = b""
        for number in range(messages):
            got = self._libc.msgrcv(queue, buffer, ctypes.c_size_t(size), ctypes.c_long(number), _IPC_NOWAIT | _MSG_COPY)
            if got < 0:
                break
            found += buffer.raw[word : word + got]
        return found
