"""Install the stub in front of functions, and remove it. This includes stubs of earlier runs.

The stub is one range of memory: a page that lists the patches, the code, two pages of settings, and
the table, whose first part is shared (table.py). If the debugger is killed, later runs identify the
stub by its first page."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional, Protocol, TypeVar

from findleaks.errors import TargetError
from findleaks.injection import remote_syscall as remote
from findleaks.injection.own_memory import HEAD, MAGIC, PAGE, Read, own_memory
from findleaks.injection.remote_syscall import check_result, entry, read_mappings
from findleaks.injection.stub.free_range import find_free_range, stack_growth
from findleaks.injection.stub.proc_memory import ProcMemory
from findleaks.injection.stub.relocate import JUMP_BYTES, Patch, Refused, jump
from findleaks.injection.stub.table import ENABLED, SERVED, SHARED, SWITCHES, CountTable
from findleaks.target.base import Region
from findleaks.target.control import PatchHost, ThreadPosition

_PATCH = struct.Struct("<Q8s8s")
MAX_PATCHES = 128  # maximum number of patches of a stub, limited by the size of its first page
# Maximum number of bytes of a stack that are searched for addresses of the stub
MAX_STACK_BYTES = 8 << 20
# To let threads leave the stub, the process is resumed at least TRIES times, for PAUSE seconds
# each, and until LEAVE_SECONDS have passed: on a busy machine, a thread may wait for a processor.
TRIES, PAUSE, LEAVE_SECONDS = 100, 0.004, 2.0
_RW, _RX, _PRIVATE, _SHARED, _ANONYMOUS, _NO_REPLACE = 3, 5, 2, 1, 0x20, 0x100000
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, Linux 4.14


class Patched(NamedTuple):
    """The bytes at one address: `original`, and the `jump` to the stub that replaces them."""

    address: int
    original: bytes
    jump: bytes


class Stub(NamedTuple):
    """A stub in a process: `size` bytes at `address`, of which the first `code` bytes are
    executable."""

    address: int
    code: int
    size: int
    patches: tuple[Patched, ...]

    @property
    def table(self) -> int:
        return self.address + self.code

    def page(self) -> bytes:
        """Build the contents of the first page."""
        rows = b"".join(_PATCH.pack(one.address, one.original, one.jump) for one in self.patches)
        return HEAD.pack(MAGIC, self.code, self.size, self.table, len(self.patches)) + rows


def find_stubs(regions: Iterable[Region], read: Read) -> list[Stub]:
    """Find the stubs in a process."""
    made = []
    for one in own_memory(regions, read):
        if one.patches <= MAX_PATCHES:
            rows = [_PATCH.unpack_from(one.head, HEAD.size + _PATCH.size * number) for number in range(one.patches)]
            patches = tuple(Patched(address, old[:JUMP_BYTES], new[:JUMP_BYTES]) for address, old, new in rows)
            made.append(Stub(one.address, one.code, one.size, patches))
    return made


class StubCode(Protocol):
    """The code of a stub."""

    @property
    def patches(self) -> Sequence[Patch]:
        """The functions to patch, with the jumps to the stub."""
        ...

    @property
    def size(self) -> int:
        """Size of the code in bytes."""
        ...

    def entry(self, number: int) -> int:
        """Return the offset in the code that is the target of the jump of `patches[number]`."""
        ...

    def at(self, address: int, table: int) -> bytes:
        """Build the code for address `at`, with its table at `table`."""
        ...


L = TypeVar("L", bound=CountTable)


def install(
    host: PatchHost, memory: ProcMemory, code: StubCode, layout: L, settings: Callable[[L], bytes], program: str
) -> tuple[Stub, L, mmap.mmap]:
    """Install the stub, disabled, and its table with the sizes of `layout`.
    Raises TargetError on failure; nothing is changed then."""
    if len(code.patches) > MAX_PATCHES:
        raise Refused(f"{len(code.patches)} functions to patch exceed the limit of {MAX_PATCHES}")
    _wait_until_clear(host, memory.read, [(patch.address + 1, patch.address + patch.size) for patch in code.patches])
    regions = read_mappings(host.pid)
    stub, layout = _place(host.pid, regions, code, layout, program)
    text = code.at(stub.address + PAGE, stub.table)
    installation = _Installation(host, memory, entry(regions, memory.read), stub)
    try:
        shared = installation.map_memory(layout)
        memory.write(layout.address, settings(layout))
        memory.write(stub.address, stub.page())
        memory.write(stub.address + PAGE, text)
        for one in stub.patches:
            host.write(one.address, one.jump)
    except BaseException:
        installation.undo()
        raise
    finally:
        installation.close_descriptor()
    return stub, layout, shared


def _place(pid: int, regions: Sequence[Region], code: StubCode, layout: L, program: str) -> tuple[Stub, L]:
    """Find free memory for the stub near the functions to patch."""
    executable = PAGE + (code.size + PAGE - 1 & -PAGE)
    size = executable + layout.size
    base = find_free_range(regions, size, [patch.address for patch in code.patches], program, stack_growth(pid))
    if base is None:
        raise Refused(f"cannot allocate memory near {code.patches[0].address:#x}: no {size:,} bytes are free within 2 GiB")
    entries = [base + PAGE + code.entry(number) for number in range(len(code.patches))]
    patched = tuple(Patched(patch.address, patch.original, jump(patch.address, to)) for patch, to in zip(code.patches, entries))
    return Stub(base, executable, size, patched), replace(layout, address=base + executable)


class _Installation:
    """What the installation of a stub has changed in the process until now."""

    def __init__(self, host: PatchHost, memory: ProcMemory, syscall: int, stub: Stub) -> None:
        self._host, self._memory, self._syscall, self._stub = host, memory, syscall, stub
        self._ranges: list[tuple[int, int]] = []
        self._descriptor = -1
        """Number of the table's memfd in the process; -1: none."""
        self._shared: Optional[mmap.mmap] = None

    def map_memory(self, layout: CountTable) -> mmap.mmap:
        """Map the stub's code and table in the process, and return the shared part of the table,
        mapped in this process."""
        end = layout.shared_end
        self._map(self._stub.address, self._stub.code, _RX, _PRIVATE | _ANONYMOUS)
        self._map(layout.address, SHARED, _RW, _PRIVATE | _ANONYMOUS)
        self._memory.write(layout.address, b"findleaks\0")
        self._descriptor = check_result("memfd_create", self._call(remote.MEMFD_CREATE, layout.address, 1))
        check_result("ftruncate", self._call(remote.FTRUNCATE, self._descriptor, end - SHARED))
        self._map(layout.address + SHARED, end - SHARED, _RW, _SHARED, self._descriptor)
        self._shared = _map_shared(self._host.pid, self._descriptor, end - SHARED)
        self._map(layout.address + end, layout.size - end, _RW, _PRIVATE | _ANONYMOUS)
        for at, after in ((SWITCHES, SHARED), (end, layout.size)):
            failed = -self._call(remote.MADVISE, layout.address + at, after - at, _WIPE_ON_FORK)
            if failed:
                why = f"madvise: {errno.errorcode.get(failed, failed)}"
                raise Refused(f"the kernel cannot zero memory in forked children, as Linux 4.14 and later do: {why}")
        return self._shared

    def undo(self) -> None:
        restore(self._host, self._memory, self._stub)
        if self._shared is not None:
            self._shared.close()
        for address, length in self._ranges:
            self._call(remote.MUNMAP, address, length)

    def close_descriptor(self) -> None:
        if self._descriptor >= 0:
            self._call(remote.CLOSE, self._descriptor)

    def _map(self, address: int, length: int, access: int, how: int, descriptor: int = -1) -> None:
        got = check_result("mmap", self._call(remote.MMAP, address, length, access, how | _NO_REPLACE, descriptor, 0))
        if got != address:  # kernels before 4.17 treat the address only as a hint
            self._call(remote.MUNMAP, got, length)
            raise Refused(f"cannot allocate memory near {self._stub.patches[0].address:#x}: the kernel offers {got:#x}")
        self._ranges.append((address, length))

    def _call(self, number: int, *words: int) -> int:
        return self._host.call(self._syscall, number, *words)


def _map_shared(pid: int, descriptor: int, size: int) -> mmap.mmap:
    try:
        file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TargetError(f"the table cannot be shared with pid {pid}: {os.strerror(error.errno or 0).lower()}") from None
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def enable(memory: ProcMemory, stub: Stub, on: bool) -> None:
    """Enable or disable counting. While it is disabled, calls pass through the stub and are not
    counted."""
    memory.write(stub.table + ENABLED, bytes((on,)).ljust(8, b"\0"))


def abandon(memory: ProcMemory, stub: Stub) -> None:
    """Disable counting, and release threads that wait for an answer, because there is no server any
    more."""
    enable(memory, stub, False)
    memory.write(stub.table + SERVED, bytes(8))


def restore(host: PatchHost, memory: ProcMemory, stub: Stub) -> list[Patched]:
    """Restore the original bytes. Returns the patches at which the bytes are neither the original
    nor the jump."""
    unexpected = []
    for one in stub.patches:
        now = memory.read(one.address, JUMP_BYTES)
        if now == one.jump:
            host.write(one.address, one.original)
        elif now != one.original:
            unexpected.append(one)
    return unexpected


def limited_tries(seconds: float = LEAVE_SECONDS) -> Iterator[None]:
    """Yield at least TRIES times, and until `seconds` have passed."""
    limit, tries = time.monotonic() + seconds, 0
    while tries < TRIES or time.monotonic() < limit:
        tries += 1
        yield


def settle(host: PatchHost, read: Read, stub: Stub, run: bool, seconds: float = LEAVE_SECONDS) -> Optional[str]:
    """Wait until no thread is in the stub or may return to it. Returns None, or a description of a
    thread that is still there.
    With `run`, the process is resumed in the meantime, at least TRIES times, and until `seconds`
    have passed. Otherwise threads are checked only once."""
    where = None
    for _ in limited_tries(seconds):
        where = describe_thread_in(host.places(), read_mappings(host.pid), read, [(stub.address, stub.address + stub.code)])
        if where is None or not run:
            return where
        if host.run(PAUSE).why != "time":
            return where
    return where


def unmap(host: PatchHost, read: Read, stub: Stub) -> None:
    check_result("munmap", host.call(entry(read_mappings(host.pid), read), remote.MUNMAP, stub.address, stub.size))


def _wait_until_clear(host: PatchHost, read: Read, ranges: Sequence[tuple[int, int]]) -> None:
    """Wait until no thread is within `ranges`, whose bytes will be changed. Raises Refused if a
    thread stays there."""
    for _ in limited_tries():
        where = describe_thread_in(host.places(), read_mappings(host.pid), read, ranges)
        if where is None:
            return
        if host.run(PAUSE).why != "time":
            break
    raise Refused(f"{where}, in the bytes that are to be patched; try again")


def describe_thread_in(
    places: Sequence[ThreadPosition], regions: Sequence[Region], read: Read, ranges: Sequence[tuple[int, int]]
) -> Optional[str]:
    """Describe the first thread that is in a range, or that has an address of a range on its
    stack."""
    for place in places:
        if any(low <= place.pc < high for low, high in ranges):
            return f"thread {place.tid} is at {place.pc:#x}"
    for place in places:
        end = next((region.end for region in regions if place.sp in region), place.sp)
        data = read(place.sp & -8, min(end - place.sp, MAX_STACK_BYTES))
        for low, high in ranges:
            at = _within(data, low, high)
            if at is not None:
                return f"thread {place.tid} may return to {at:#x}"
    return None


def _within(data: bytes, low: int, high: int) -> Optional[int]:
    """Return the first aligned word of `data` in [low, high)."""
    for upper in range(low >> 16, (high - 1 >> 16) + 1):
        pattern = upper.to_bytes(6, "little")
        at = data.find(pattern)
        while at >= 0:
            if at % 8 == 2:
                word = int.from_bytes(data[at - 2 : at + 6], "little")
                if low <= word < high:
                    return word
            at = data.find(pattern, at + 1)
    return None
