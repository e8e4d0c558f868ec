"""Read pointers of a process that only the kernel keeps, where the kernel reports them.

- /proc/PID/fdinfo/FD of an epoll descriptor: `data` of each registration (Linux 3.8,
  fs/eventpoll.c, ep_show_fdinfo; always 64 bits).
- /proc/PID/fdinfo/FD of an io_uring: registered buffers, and the queue entries that the kernel
  prints (io_uring/fdinfo.c, 6.x). The kernel does not print the user data of requests in flight.
- /proc/PID/fdinfo/FD of an eventfd: its counter, which may be a pointer (Linux 3.8, fs/eventfd.c).
- Unread data of pipes, Unix sockets and message queues, and memfds that are not mapped: see
  unread_data.py.
- /proc/PID/timers: `sigev_value` of POSIX timers (Linux 3.10, fs/proc/base.c, show_timer; only with
  CONFIG_CHECKPOINT_RESTORE).
- /proc/PID/fd: the number of open descriptors, by what they refer to. These are not pointers, but
  they are counted because a descriptor that is never closed leaks kernel memory. Sockets are
  counted by protocol (extended attribute system.sockprotoname; net/socket.c) if there are few.
- PTRACE_PEEKSIGINFO: `si_value` of queued signals (Linux 3.10; ptrace(2)).

`read_kernel_state` reads these while the process is stopped. Cores that findleaks writes contain
the text form."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol
from urllib.parse import quote, unquote_to_bytes

from findleaks.formatting import replace_numbers
from findleaks.target.arch import Arch
from findleaks.target.files import read_file
from findleaks.target.kernel_objects import TIMERS_UNREAD, URING, URING_NAME

if TYPE_CHECKING:
    from findleaks.target.unread_data import UnreadData, UnreadReader

PEEKSIGINFO = 0x4209  # PTRACE_PEEKSIGINFO
_SHARED = 1  # PTRACE_PEEKSIGINFO_SHARED: the queue of the process, not of the thread
_SIGINFO = 128  # bytes of siginfo_t
_AT_ONCE = 512  # most signals read by one request
_MOST = 1 << 20  # maximum number of references that are recorded
_VALUED = (-1, -2, -3, -4)  # SI_QUEUE, SI_TIMER, SI_MESGQ, SI_ASYNCIO: codes with an si_value
_LONGEST_LINE = 80  # most characters of a line of the text form
_MOST_NAMES = 64  # most files and kinds whose open descriptors are counted
_MOST_SOCKETS = 2048  # most sockets whose protocols are read
_PROTOCOL = "system.sockprotoname"
_MANY = 100  # descriptors of one file: this file is counted by its own name

NUMBERED_FILES = "files "
"""Prefix of a pattern that stands for the names of several files."""
SOCKET = "socket"
"""The name of sockets whose protocols are unknown."""
OTHERS = "other files and kinds"
"""The name of the descriptors that are not counted by name."""
_EPOLL, _BPF, _EVENTFD = "anon_inode:[eventpoll]", "anon_inode:bpf-map", "anon_inode:[eventfd]"
_PAGE = 4096  # bytes of unread data that are skipped together if they are zero
_LOWEST = 1 << 16  # smaller words of unread data are not pointers

_OPENED = re.compile(rb"^OPENED ([0-9a-f]{1,8}) ([!-~]{1,12288})$", re.MULTILINE)
_EPOLL_LINE = re.compile(rb"^tfd:\s*(\d+)\s+events:\s*[0-9a-f]+\s+data:\s*([0-9a-f]+)", re.MULTILINE)
_COUNTER = re.compile(rb"^eventfd-count:\s*([0-9a-f]+)$", re.MULTILINE)
_TIMER = re.compile(rb"^ID: (\d+)\nsignal: \d+/([0-9a-f]+)$", re.MULTILINE)
_BUFFER = re.compile(rb"^\s*\d+: 0x([0-9a-f]+)/\d+$", re.MULTILINE)
_SUBMITTED = re.compile(rb"^\s*\d+: opcode:.*?addr:0x([0-9a-f]+).*?user_data:(\d+)", re.MULTILINE)
_COMPLETED = re.compile(rb"^\s*\d*:?\s*user_data[:=](\d+),? *res", re.MULTILINE)


REGISTERED_BUFFER = "registered buffer"  # the part of an io_uring that refers to such memory
TIMERS, SIGNALS = "POSIX timers", "queued signals"  # holders whose parts have distinct names


class KernelReference(NamedTuple):
    """A word that the kernel keeps for the process. `holder` is the kernel object, and `part` the
    position in it. Examples: "epoll data of descriptor 5" and "target 7"; TIMERS and "timer 0"."""

    value: int
    holder: str
    part: str

    @property
    def name(self) -> str:
        """The name for output: "epoll data of descriptor 5 (target 7)", "timer 0"."""
        return self.part if self.holder in (TIMERS, SIGNALS) else f"{self.holder} ({self.part})"


class KernelState(NamedTuple):
    """Result of `decode_raw_state`. `hidden`: number of kernel objects whose pointers cannot be
    read, by singular name: {"io_uring descriptor": 2}. `opened`: number of open descriptors by path
    or kind: {"/tmp/a": 3, "TCP socket": 2}, see `count_names`; {} if it is unknown."""

    references: Sequence[KernelReference]
    hidden: Mapping[str, int]
    opened: Mapping[str, int] = {}


class _Queue(Protocol):
    """Reads the queued signals (`siginfo_t`) of a thread, from number `first` on; with `shared`,
    the signals of the process. Returns None if the kernel refuses."""

    def __call__(self, tid: int, first: int, shared: bool) -> Optional[bytes]: ...


class RawState(NamedTuple):
    """Data read while the process was stopped, not decoded yet."""

    infos: Sequence[tuple[str, int, bytes]]  # (kind, descriptor, text of its fdinfo)
    timers: bytes
    queued: Sequence[tuple[int, bytes]]  # (thread id or 0 for the process, siginfo_t)
    hidden: Mapping[str, int]
    unread: Sequence[UnreadData] = ()
    opened: Mapping[str, int] = {}


def read_kernel_state(proc: str, tids: Sequence[int], read_queue: _Queue, reader: UnreadReader) -> RawState:
    """Read the data that the kernel keeps for a stopped process. `proc` is the /proc folder of a
    living thread, `tids` are all its threads, and `reader` reads the data in its pipes and
    sockets."""
    infos: list[tuple[str, int, bytes]] = []
    hidden: dict[str, int] = {}
    descriptors = list(_descriptors(f"{proc}/fd"))
    for descriptor, link in descriptors:
        if link in (_EPOLL, URING, _EVENTFD):
            try:
                infos.append((link, descriptor, read_file(f"{proc}/fdinfo/{descriptor}")))
            except OSError:
                if link == _EPOLL:
                    _count(hidden, "epoll descriptor")
        if link in (URING, _BPF):
            _count(hidden, URING_NAME if link == URING else "BPF map")
    opened = count_names(_name_objects(proc, descriptors))
    try:
        timers = read_file(f"{proc}/timers")
    except OSError:
        timers = b""
        _count(hidden, TIMERS_UNREAD)
    queued, unread = _queued_signals(proc, tids, read_queue)
    if unread:
        hidden["unread signal queue"] = unread
    if reader.is_running:
        registered = {int(match[1]) for kind, _, text in infos if kind == _EPOLL for match in _EPOLL_LINE.finditer(text)}
        descriptors = [one for one in descriptors if one[0] not in registered]
    data = list(reader.read(proc, descriptors, lambda name: _count(hidden, name)))
    return RawState(infos, timers, queued, hidden, data, opened)


def decode_raw_state(raw: RawState, arch: Arch) -> KernelState:
    """Decode at most _MOST references, without null pointers."""
    found: list[KernelReference] = []
    for one in _references(raw, arch):
        if len(found) == _MOST:
            break
        if one.value:
            found.append(one)
    return KernelState(found, raw.hidden, raw.opened)


def encode_state(state: KernelState) -> bytes:
    """Encode as text, one item a line: "REFERENCE HEX HOLDER, PART", "HIDDEN COUNT NAME" or "OPENED
    COUNT NAME". File names are quoted as in a URL."""
    lines = [f"REFERENCE {one.value:x} {one.holder}, {one.part}\n" for one in state.references]
    lines += [f"HIDDEN {count:x} {name}\n" for name, count in state.hidden.items()]
    lines += [f"OPENED {count:x} {quote(os.fsencode(name))}\n" for name, count in state.opened.items()]
    return "".join(lines).encode()


def decode_state(text: bytes) -> KernelState:
    """Decode the text form, which may be hostile: unknown lines are ignored."""
    references: list[KernelReference] = []
    hidden: dict[str, int] = {}
    for match in re.finditer(rb"(REFERENCE|HIDDEN) ([0-9a-f]{1,16}) ([\w ,()/-]{1,%d})\n" % _LONGEST_LINE, text, re.ASCII):
        value, name = int(match[2], 16), match[3].decode()
        if match[1] == b"HIDDEN":
            hidden[name] = min(value, 1 << 31)
        elif len(references) < _MOST:
            holder, _, part = name.partition(", ")
            references.append(KernelReference(value, holder, part))
    opened: dict[str, int] = {}
    for match in islice(_OPENED.finditer(text), _MOST_NAMES):
        opened[os.fsdecode(unquote_to_bytes(match[2]))] = min(int(match[1], 16), 1 << 31)
    return KernelState(references, hidden, opened)


def _references(raw: RawState, arch: Arch) -> Iterator[KernelReference]:
    for kind, descriptor, text in raw.infos:
        if kind == _EPOLL:
            for match in _EPOLL_LINE.finditer(text):
                yield from _words(arch, int(match[2], 16), f"epoll data of descriptor {descriptor}", f"target {int(match[1])}")
        elif kind == _EVENTFD:
            counters = (int(match[1], 16) for match in _COUNTER.finditer(text))
            yield from (KernelReference(one, f"eventfd, descriptor {descriptor}", "counter") for one in counters if one >= _LOWEST)
        else:
            yield from _uring(descriptor, text)
    for holder, data, is_memory in raw.unread:
        yield from _words_of_data(arch, holder, data, arch.word if is_memory or arch.word == 4 else 1)
    for match in _TIMER.finditer(raw.timers):
        yield KernelReference(int(match[2], 16), TIMERS, f"timer {int(match[1])}")
    order, form = arch.byteorder, arch.word
    at = 24 if form == 8 else 20  # offset of si_value in siginfo_t, after si_pid and si_uid
    for tid, info in raw.queued:
        number, code = (int.from_bytes(info[start : start + 4], order, signed=True) for start in (0, 8))
        if code in _VALUED:
            whose = f"thread {tid}" if tid else "the process"
            yield KernelReference(int.from_bytes(info[at : at + form], order), SIGNALS, f"signal {number} queued for {whose}")


def _uring(descriptor: int, text: bytes) -> Iterator[KernelReference]:
    holder = f"io_uring descriptor {descriptor}"
    for match in _BUFFER.finditer(text):
        yield KernelReference(int(match[1], 16), holder, REGISTERED_BUFFER)
    for match in _SUBMITTED.finditer(text):
        yield KernelReference(int(match[1], 16), holder, "address of a submitted entry")
        yield KernelReference(int(match[2]) & (1 << 64) - 1, holder, "user data of a submitted entry")
    for match in _COMPLETED.finditer(text):
        yield KernelReference(int(match[1]) & (1 << 64) - 1, holder, "user data of a completed entry")


def _words_of_data(arch: Arch, holder: str, data: bytes, step: int) -> Iterator[KernelReference]:
    """Yield the words of unread data that may be pointers. Words at multiples of `step` bytes are
    examined. On 64-bit targets, pointers in messages may be at any offset, because a message may
    begin with a byte for its type. On 32-bit targets, only multiples of 4 are examined, because
    most 32-bit words look like pointers."""
    for page in range(0, len(data), _PAGE):
        if not data[page : page + _PAGE + arch.word].strip(b"\0"):
            continue
        for at in range(page, min(page + _PAGE, len(data) - arch.word + 1), step):
            value = int.from_bytes(data[at : at + arch.word], arch.byteorder)
            if _LOWEST <= value < 1 << 48:
                yield KernelReference(value, holder, f"byte {at}")


def _words(arch: Arch, data: int, holder: str, part: str) -> Iterator[KernelReference]:
    """Yield the data of an epoll registration (64 bits): one word, or two words in a 32-bit
    process."""
    if arch.word == 8:
        yield KernelReference(data, holder, part)
        return
    yield KernelReference(data & arch.mask, holder, part)
    yield KernelReference(data >> 32, holder, part)


def _descriptors(folder: str) -> Iterator[tuple[int, str]]:
    """Yield (number, link target) of each descriptor, ascending."""
    try:
        numbers = sorted(int(name) for name in os.listdir(folder))
    except (OSError, ValueError):
        return
    for number in numbers:
        try:
            yield number, os.readlink(f"{folder}/{number}")
        except OSError:
            continue


def _name_objects(proc: str, descriptors: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yield the names of what descriptors refer to, without the numbers of sockets and pipes.
    Sockets have their protocol: "TCP socket". If there are too many to read all protocols while the
    process is stopped, or if a protocol cannot be read, all are named "socket"."""
    sockets = []
    for descriptor, link in descriptors:
        if link.startswith("socket:["):
            sockets.append(descriptor)
        else:
            yield link if link.startswith(("/", "anon_inode:")) else link.partition(":[")[0]
    try:
        # About 3.5 µs for each socket
        protocols = [os.getxattr(f"{proc}/fd/{one}", _PROTOCOL) for one in sockets] if len(sockets) <= _MOST_SOCKETS else []
    except OSError:
        protocols = []
    names = {one: f"{one.rstrip(bytes(1)).decode('ascii', 'replace')} {SOCKET}" for one in set(protocols)}
    yield from (names[one] for one in protocols) if protocols else [SOCKET] * len(sockets)


def is_socket(name: str) -> bool:
    """Whether a name is that of sockets, and not that of a file such as "/etc/cups.socket"."""
    return name.endswith(SOCKET) and not name.startswith(("/", NUMBERED_FILES))


def count_names(names: Iterable[str]) -> dict[str, int]:
    """Count descriptors by the name of what they refer to. If there are more than _MOST_NAMES
    names, files with few descriptors whose names differ only in numbers are counted together
    ("files /tmp/a-#"), and the names with the lowest counts are counted as OTHERS."""
    counts = Counter(names)
    if len(counts) > _MOST_NAMES:
        few = {name: count for name, count in counts.items() if count < _MANY}
        counts = Counter({name: count for name, count in counts.items() if count >= _MANY} | merge_numbered_files(few))
    rows = counts.most_common()
    if len(rows) > _MOST_NAMES:
        rest = sum(count for _, count in rows[_MOST_NAMES - 1 :])
        rows = [*rows[: _MOST_NAMES - 1], (OTHERS, rest)]
    return dict(rows)


def merge_numbered_files(counts: Mapping[str, int]) -> dict[str, int]:
    """Add up the counts of files whose names differ only in numbers. "/tmp/a-1" and "/tmp/a-2"
    become "files /tmp/a-#"."""
    patterns = {name: f"{NUMBERED_FILES}{replace_numbers(name)}" for name in counts if name.startswith("/")}
    alike = Counter(patterns.values())
    merged: dict[str, int] = {}
    for name, count in counts.items():
        pattern = patterns.get(name, name)
        key = pattern if alike[pattern] > 1 or pattern in counts else name
        merged[key] = merged.get(key, 0) + count
    return merged


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _queued_signals(proc: str, tids: Iterable[int], read_queue: _Queue) -> tuple[list[tuple[int, bytes]], int]:
    """Return the queued signals, each with its thread (0: any thread of the process), and the
    number of queues with pending signals that could not be read."""
    found: list[tuple[int, bytes]] = []
    unread = 0
    shared_seen = False
    for tid in tids:
        own, shared = _pending(f"{proc}/task/{tid}/status")
        for pending, whole in ((own, False), (shared and not shared_seen, True)):
            if not pending:
                continue
            first = 0
            while (data := read_queue(tid, first, whole)) and len(found) < _MOST:
                found += [(0 if whole else tid, data[at : at + _SIGINFO]) for at in range(0, len(data), _SIGINFO)]
                first += len(data) // _SIGINFO
            unread += data is None
        shared_seen = shared_seen or shared
    return found, unread


def _pending(path: str) -> tuple[bool, bool]:
    """Whether signals are pending for a thread, and for its process, by its `status` file."""
    try:
        text = read_file(path)
    except OSError:
        return False, False
    found = dict(re.findall(rb"^(SigPnd|ShdPnd):\s*([0-9a-f]+)", text, re.MULTILINE))
    return bool(int(found.get(b"SigPnd", b"0"), 16)), bool(int(found.get(b"ShdPnd", b"0"), 16))


def peek_signals(tid: int, first: int, shared: bool) -> Optional[bytes]:
    """Read queued signals of a thread from number `first` on, as `siginfo_t`s, without removing
    them. Returns b"" at the end, and None if the kernel refuses. Only the thread that traces `tid`
    may call this."""
    from findleaks.target.ptrace import ptrace_library

    arguments = struct.pack("=QIi", first, _SHARED if shared else 0, _AT_ONCE)
    buffer = ctypes.create_string_buffer(_AT_ONCE * _SIGINFO)
    given = ctypes.create_string_buffer(arguments)
    got = ptrace_library().ptrace(PEEKSIGINFO, tid, ctypes.addressof(given), ctypes.addressof(buffer))
    return None if got < 0 else buffer.raw[: got * _SIGINFO]
