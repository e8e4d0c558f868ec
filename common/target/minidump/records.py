"""Decode the records of a minidump: memory, threads, modules, mappings.

Layouts: Microsoft's minidumpapiset.h (MINIDUMP_MEMORY_LIST, _MEMORY64_LIST, _THREAD_LIST,
_MODULE_LIST, _MEMORY_INFO_LIST, _EXCEPTION_STREAM, _MISC_INFO, _THREAD_NAME_LIST). The streams of
Linux dumps are copies of files of /proc (Breakpad src/google_breakpad/common/minidump_format.h)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.errors import TargetError
from findleaks.target import maps
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import Region, Thread, order_threads
from findleaks.target.layout import top_of
from findleaks.target.minidump import contexts, contexts_arm64, streams
from findleaks.target.minidump.streams import File, items
from findleaks.target.notes import AT_PAGESZ, FAULTS, SI_TKILL, SIGABRT, auxiliary, program_name

_RANGE, _RANGE64, _RANGES64 = struct.Struct("<Q2I"), struct.Struct("<2Q"), struct.Struct("<2Q")
_THREAD = struct.Struct("<4I2Q4I")
_MODULE = struct.Struct("<Q4I52x2I2I16x")  # base, size, checksum, time, name; CodeView, misc
_EXCEPTION = struct.Struct("<2I2I2Q2I120x2I")
_INFO = struct.Struct("<2QI4xQ3I4x")  # start, allocation …, size, state, protection, type
_NAME = struct.Struct("<IQ")
_BUILD_ID = b"LEpB"  # MD_CVINFOELF_SIGNATURE, "BpEL"
_MACHINES = {0: "i386", 5: "ARM", 9: "x86-64", 12: "AArch64", 0x8003: "AArch64", 0x8001: "SPARC", 0x8002: "PowerPC64"}
_Read = Callable[[int, memoryview, int], tuple[Thread, bool]]


class _Machine(NamedTuple):
    """Functions for one processor. `thread` decodes a thread from its id, context and thread
    pointer. `longer_vectors` returns, given the auxiliary vector, whether vector registers have
    more than 128 bits."""

    arch: Arch
    thread: _Read
    longer_vectors: Callable[[Mapping[int, int]], bool]


_ARM64 = _Machine(AARCH64, contexts_arm64.thread, contexts_arm64.longer_vectors)
_KNOWN = {9: _Machine(X86_64, contexts.thread, lambda auxv: True), 12: _ARM64, 0x8003: _ARM64}
"""By processor number of the dump; Breakpad has an older number for AArch64."""
_SYSTEMS = {2: "Windows", 0x8101: "macOS", 0x8102: "iOS", 0x8202: "Solaris"}
_LINUX = (0x8201, 0x8203)  # and Android
_COMMITTED = 0x1000
_MOST_NAME = 64  # most bytes of a thread's name; names in the kernel have at most 15
_MOST_MODULES = 1 << 16  # the kernel's limit on the number of mappings
_READABLE, _WRITABLE, _EXECUTABLE, _PRIVATE = 0xEE, 0xCC, 0xF0, 0x20000


class Memory(NamedTuple):
    """[start, start + size) of the process was written at `offset` of the file."""

    start: int
    size: int
    offset: int


class ListedModule(NamedTuple):
    """A module in the dump's list; `size` may be wrong, `build_id` is "" if missing."""

    start: int
    size: int
    path: str
    build_id: str


class Dump(NamedTuple):
    arch: Arch
    memory: list[Memory]
    threads: list[Thread]  # the main one first
    unknown_registers: str  # as in Target, for all threads together
    modules: list[ListedModule]
    regions: list[Region]  # sorted, disjoint; [] if the dump has no list of mappings
    auxv: dict[int, int]
    pid: Optional[int]
    name: str  # the kernel's 15-character name
    called: str
    crashed: int
    names: dict[int, str]  # names of threads by tid
    started: Optional[int]


def read_records(file: File, name: str) -> Dump:
    """Read the records of a dump.
    Raises TargetError if it is from another system or machine."""
    machine, read, longer = _machine(file.stream(streams.SYSTEM), f"{name}: truncated" if file.cut else name)
    auxv = auxiliary(machine, bytes(file.stream(streams.AUXV)))
    arch = machine.with_page(auxv.get(AT_PAGESZ, 0))
    status = _status(file.stream(streams.STATUS))
    pid = _pid(file, status)
    threads, vectors = _threads(file, read)
    threads = order_threads(threads, pid)
    words = bytes(file.stream(streams.COMMAND_LINE)).decode("utf-8", "surrogateescape")
    return Dump(
        arch,
        _memory(file),
        threads,
        "the vector registers" if not vectors else "the vector registers beyond 128 bits" if longer(auxv) else "",
        _modules(file),
        _regions(file),
        auxv,
        pid,
        status.get("Name", ""),
        program_name(status.get("Name", ""), words),
        _find_crashed(file),
        {tid: file.text(offset, _MOST_NAME) for tid, offset in items(file.stream(streams.NAMES), _NAME)},
        _read_start_time(file.stream(streams.STAT)),
    )


def _machine(system: memoryview, name: str) -> _Machine:
    machine, platform = (int.from_bytes(part, "little") for part in (system[:2], system[20:24]))
    if len(system) < 24:
        raise TargetError(f"{name}: the system information of the minidump is missing")
    if platform not in _LINUX:
        raise TargetError(f"{name}: a minidump of {_SYSTEMS.get(platform, f'system {platform:#x}')}; only Linux is supported")
    if machine not in _KNOWN:
        which = _MACHINES.get(machine, f"machine {machine:#x}")
        raise TargetError(f"{name}: a minidump of {which}; only x86-64 and AArch64 are supported for now")
    return _KNOWN[machine]


def _status(text: memoryview) -> dict[str, str]:
    """Parse the fields of /proc/PID/status."""
    lines = (line.partition(":") for line in bytes(text).decode("utf-8", "surrogateescape").split("\n"))
    return {key: value.strip() for key, _, value in lines}


def _pid(file: File, status: dict[str, str]) -> Optional[int]:
    misc = file.stream(streams.MISC)
    flags, pid = (int.from_bytes(part, "little") for part in (misc[4:8], misc[8:12]))
    if flags & 1 and 0 < pid < 1 << 31:
        return pid
    written = status.get("Tgid", status.get("Pid", ""))
    return int(written) if written.isascii() and written.isdigit() and len(written) < 11 else None


def _memory(file: File) -> list[Memory]:
    """Return the memory of all lists, without duplicates: thread stacks are often in two lists."""
    found = {Memory(start, size, offset): None for start, size, offset in items(file.stream(streams.MEMORY), _RANGE)}
    for row in items(file.stream(streams.THREADS), _THREAD):
        found[Memory(row[5], row[6], row[7])] = None
    whole = file.stream(streams.MEMORY64)
    if len(whole) >= _RANGES64.size:
        count, offset = _RANGES64.unpack_from(whole)
        fit = min(count, len(whole) // _RANGE64.size - 1)
        for start, size in _RANGE64.iter_unpack(whole[_RANGES64.size : (fit + 1) * _RANGE64.size]):
            found[Memory(start, size, offset)] = None
            offset += size
    return [memory for memory in found if memory.size]


def _threads(file: File, read: _Read) -> tuple[list[Thread], bool]:
    """Return the threads, and whether the vector registers of all of them are known. If an id
    occurs repeatedly, the first thread is returned. The thread of the exception gets the context of
    the exception, because in Crashpad's dumps its own context was taken later. Reading stops if all
    contexts together have more bytes than the file. Then they overlap, which only hostile dumps
    do."""
    crash = _EXCEPTION.unpack_from(found) if len(found := file.stream(streams.EXCEPTION)) >= _EXCEPTION.size else (0,) * 10
    threads: dict[int, Thread] = {}
    every, left = True, len(file.view)
    for row in items(file.stream(streams.THREADS), _THREAD):
        tid, pointer, at = row[0], row[4], (row[9], min(row[8], contexts.MOST))
        left -= at[1]
        if left < 0:
            break
        if tid not in threads:
            made, vectors = read(tid, file.at(*at), pointer)
            if tid == crash[0]:
                fault, known = read(tid, file.at(crash[9], crash[8]), made.thread_pointer)
                made, vectors = (fault, known) if fault.sp else (made, vectors)
            threads[tid] = made
            every = every and vectors
    return list(threads.values()), every


def _find_crashed(file: File) -> int:
    """Return the id of the thread that faulted or called abort(), as for cores. si_code is in the
    flags."""
    found = file.stream(streams.EXCEPTION)
    if len(found) < _EXCEPTION.size:
        return 0
    tid, _, number, code = _EXCEPTION.unpack_from(found)[:4]
    code -= (code >> 31) << 32
    return tid if (number in FAULTS and code > 0) or (number == SIGABRT and code == SI_TKILL) else 0


def _modules(file: File) -> list[ListedModule]:
    found = []
    for start, size, _, _, name, length, record, _, _ in islice(items(file.stream(streams.MODULES), _MODULE), _MOST_MODULES):
        identity = bytes(file.at(record, min(length, 68)))
        build_id = identity[4:].hex() if identity[:4] == _BUILD_ID and any(identity[4:]) else ""
        found.append(ListedModule(start, size, file.text(name), build_id))
    return sorted(one for one in found if one.start < top_of(8))


def _regions(file: File) -> list[Region]:
    """Return the mappings from /proc/PID/maps. If it is missing, use the dump's own list, which has
    no names."""
    found = maps.regions_of(bytes(file.stream(streams.MAPS))) or _listed_regions(file.stream(streams.MEMORY_INFO))
    return _disjoint(region for region in found if region.start < region.end <= top_of(8))


def _listed_regions(stream: memoryview) -> list[Region]:
    if len(stream) < 16:
        return []
    head, size, count = struct.unpack_from("<2IQ", stream)
    if size < _INFO.size or head < 16:
        return []
    found = []
    for index in range(min(count, max(len(stream) - head, 0) // size)):
        start, _, _, length, state, protection, kind = _INFO.unpack_from(stream, head + index * size)
        mode = bool(protection & _READABLE), bool(protection & _WRITABLE), bool(protection & _EXECUTABLE)
        if state & _COMMITTED:
            found.append(Region(start, start + length, *mode, private=kind == _PRIVATE or bool(protection & _WRITABLE)))
    return found


def _disjoint(regions: Iterable[Region]) -> list[Region]:
    found: list[Region] = []
    for region in sorted(regions, key=lambda region: region.start):
        if not found or region.start >= found[-1].end:
            found.append(region)
    return found


def _read_start_time(stat: memoryview) -> Optional[int]:
    """Return the start time of the process: field 22 of /proc/PID/stat, in clock ticks."""
    fields = bytes(stat).rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() and len(fields[19]) < 20 else None
