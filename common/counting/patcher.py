"""Installs the stub in front of functions, and removes it, also one left by an earlier run.

The stub is one range of memory: a page that lists the patches, the code, a page of settings, and
the shared table (table.py). The first page identifies it to later runs if its debugger was
killed."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from findleaks.counting import stubcode
from findleaks.counting.free_range import find_free_range
from findleaks.counting.proc_memory import ProcMemory
from findleaks.counting.relocate import JUMP_BYTES, Patch, Refused, jump, relocated
from findleaks.counting.table import ENABLED, SERVED, SHARED, Layout
from findleaks.errors import TargetError
from findleaks.injection import remote_syscall as remote
from findleaks.injection.remote_syscall import checked, entry, mapped
from findleaks.target.base import Region
from findleaks.target.control import PatchHost, ThreadPosition

PAGE = 4096
STUB_BYTES = 2048  # of stub code for each patched function
MAGIC = b"findleaks stub\0\1"
_HEAD = struct.Struct("<16s4Q")  # MAGIC, bytes of code, bytes in all, the table's address, patches
_PATCH = struct.Struct("<Q8s8s")
MAX_PATCHES = 128  # of a stub: its first page has space for so many
MAX_STACK_BYTES = 8 << 20  # of a stack that are searched for addresses of the stub
TRIES, PAUSE = 100, 0.004  # resume the process so often, for so many seconds, to let threads leave
_RW, _RX, _PRIVATE, _SHARED, _ANONYMOUS, _NO_REPLACE = 3, 5, 2, 1, 0x20, 0x100000
_WIPE_ON_FORK = 18

Read = Callable[[int, int], bytes]


class Patched(NamedTuple):
    """The bytes at one address: `original`, and the `jump` to the stub that replaces them."""

    address: int
    original: bytes
    jump: bytes


class Stub(NamedTuple):
    """A stub in a process: `size` bytes at `address`, the first `code` of them executable."""

    address: int
    code: int
    size: int
    patches: tuple[Patched, ...]

    @property
    def table(self) -> int:
        return self.address + self.code

    def page(self) -> bytes:
        """The first page's contents."""
        rows = b"".join(_PATCH.pack(one.address, one.original, one.jump) for one in self.patches)
        return _HEAD.pack(MAGIC, self.code, self.size, self.table, len(self.patches)) + rows


def found(regions: Iterable[Region], read: Read) -> list[Stub]:
    made = []
    for region in regions:
        if not (region.executable and region.private and not region.writable and not region.name and region.size >= 2 * PAGE):
            continue
        head = read(region.start, PAGE)
        if len(head) < PAGE or not head.startswith(MAGIC):
            continue
        _, code, size, table, count = _HEAD.unpack_from(head)
        if table != region.start + code or code != region.size or not code < size <= 1 << 28 or count > MAX_PATCHES:
            continue
        rows = [_PATCH.unpack_from(head, _HEAD.size + _PATCH.size * number) for number in range(count)]
        patches = tuple(Patched(address, old[:JUMP_BYTES], new[:JUMP_BYTES]) for address, old, new in rows)
        made.append(Stub(region.start, code, size, patches))
    return made


class Plan(NamedTuple):
    """`patches` of counted functions, each with its key; `steps`: functions that open or close a
    scope, with what each adds to the thread's depth."""

    patches: Sequence[tuple[Patch, int]]
    steps: Sequence[tuple[Patch, int]]


def install(
    host: PatchHost, memory: ProcMemory, plan: Plan, settings: Callable[[Layout], bytes], program: str
) -> tuple[Stub, Layout, mmap.mmap]:
    """Install the stub, not enabled yet. TargetError if that fails, with nothing changed."""
    every = [*plan.patches, *plan.steps]
    if len(every) > MAX_PATCHES:
        raise Refused(f"{len(every)} functions are to be patched, more than {MAX_PATCHES}")
    code = PAGE + (STUB_BYTES * len(every) + PAGE - 1 & -PAGE)
    size = code + Layout(0).size
    _wait_until_clear(host, memory.read, [(patch.address + 1, patch.address + patch.size) for patch, _ in every])
    regions = mapped(host.pid)
    base = find_free_range(regions, size, [patch.address for patch, _ in every], program)
    if base is None:
        raise Refused(f"memory cannot be had near {every[0][0].address:#x}: no {size:,} bytes are free within 2 GiB")
    layout = Layout(base + code)
    patched = tuple(
        Patched(patch.address, patch.original, jump(patch.address, base + PAGE + STUB_BYTES * number))
        for number, (patch, _) in enumerate(every)
    )
    stub = Stub(base, code, size, patched)
    text = _code(plan, stub)
    syscall = entry(regions, memory.read)

    def map_at(address: int, length: int, access: int, how: int, descriptor: int = -1) -> None:
        got = checked("mmap", host.call(syscall, remote.MMAP, address, length, access, how | _NO_REPLACE, descriptor, 0))
        if got != address:  # kernels before 4.17 take the address for a hint
            host.call(syscall, remote.MUNMAP, got, length)
            raise Refused(f"memory cannot be had near {every[0][0].address:#x}: the kernel gives it at {got:#x}")
        ours.append((address, length))

    ours: list[tuple[int, int]] = []
    descriptor, shared = -1, None
    try:
        map_at(base, code, _RX, _PRIVATE | _ANONYMOUS)
        map_at(layout.address, SHARED, _RW, _PRIVATE | _ANONYMOUS)
        memory.write(layout.address, b"findleaks\0")
        descriptor = checked("memfd_create", host.call(syscall, remote.MEMFD_CREATE, layout.address, 1))
        checked("ftruncate", host.call(syscall, remote.FTRUNCATE, descriptor, layout.size - SHARED))
        map_at(layout.address + SHARED, layout.size - SHARED, _RW, _SHARED, descriptor)
        shared = _map_shared(host.pid, descriptor, layout.size - SHARED)
        host.call(syscall, remote.MADVISE, layout.address, SHARED, _WIPE_ON_FORK)  # Linux 4.14
        memory.write(layout.address, settings(layout))
        memory.write(base, stub.page())
        memory.write(base + PAGE, text)
        for one in patched:
            host.write(one.address, one.jump)
    except BaseException:
        restore(host, memory, stub)
        if shared is not None:
            shared.close()
        for address, length in ours:
            host.call(syscall, remote.MUNMAP, address, length)
        raise
    finally:
        if descriptor >= 0:
            host.call(syscall, remote.CLOSE, descriptor)
    return stub, layout, shared


def _map_shared(pid: int, descriptor: int, size: int) -> mmap.mmap:
    try:
        file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TargetError(f"the table cannot be shared with pid {pid}: {os.strerror(error.errno or 0).lower()}") from None
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)


def _code(plan: Plan, stub: Stub) -> bytes:
    made = bytearray()
    rows = [(stubcode.COUNT, *one) for one in plan.patches] + [(stubcode.STEP, *one) for one in plan.steps]
    for blob, patch, operand in rows:
        at = stub.address + PAGE + len(made)
        piece = bytearray(blob)
        distance = stub.table - at - stubcode.TABLE - 4
        piece[stubcode.TABLE : stubcode.TABLE + 4] = distance.to_bytes(4, "little", signed=True)
        piece[stubcode.OPERAND : stubcode.OPERAND + 8] = (operand & (1 << 64) - 1).to_bytes(8, "little")
        piece += relocated(patch, at + len(blob))
        made += piece.ljust(STUB_BYTES, b"\xcc")
    return bytes(made)


def enable(memory: ProcMemory, stub: Stub, on: bool) -> None:
    """Switch counting; when off, calls pass through the stub uncounted."""
    memory.write(stub.table + ENABLED, bytes((on,)).ljust(8, b"\0"))


def abandon(memory: ProcMemory, stub: Stub) -> None:
    """Switch counting off, for threads that wait for an answer as well: no server is left."""
    enable(memory, stub, False)
    memory.write(stub.table + SERVED, bytes(8))


def restore(host: PatchHost, memory: ProcMemory, stub: Stub) -> list[Patched]:
    """Restore original bytes; return functions left alone, with neither these nor the jump."""
    unexpected = []
    for one in stub.patches:
        now = memory.read(one.address, JUMP_BYTES)
        if now == one.jump:
            host.write(one.address, one.original)
        elif now != one.original:
            unexpected.append(one)
    return unexpected


def settle(host: PatchHost, read: Read, stub: Stub, run: bool, seconds: float = 0.0) -> Optional[str]:
    """Wait until no thread is in the stub or may return there; which one still is, or None. With
    `run`, the process is resumed for TRIES moments meanwhile, and for at least `seconds`; else
    looked at once."""
    where, limit, tries = None, time.monotonic() + seconds, 0
    while not tries or (run and (tries < TRIES or time.monotonic() < limit)):
        tries += 1
        where = standing(host.places(), mapped(host.pid), read, [(stub.address, stub.address + stub.code)])
        if where is None or not run:
            return where
        if host.run(PAUSE).why != "time":
            return where
    return where


def unmap(host: PatchHost, read: Read, stub: Stub) -> None:
    checked("munmap", host.call(entry(mapped(host.pid), read), remote.MUNMAP, stub.address, stub.size))


def _wait_until_clear(host: PatchHost, read: Read, ranges: Sequence[tuple[int, int]]) -> None:
    """Wait until no thread is within `ranges`, whose bytes are to change. Refused if one stays."""
    for _ in range(TRIES):
        where = standing(host.places(), mapped(host.pid), read, ranges)
        if where is None:
            return
        if host.run(PAUSE).why != "time":
            break
    raise Refused(f"{where}, in the bytes that are to be patched: try again")


def standing(places: Sequence[ThreadPosition], regions: Sequence[Region], read: Read, ranges: Sequence[tuple[int, int]]) -> Optional[str]:
    """The first thread that is in a range, or has an address of one on its stack, for a message."""
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
    """The first aligned word of `data` in [low, high)."""
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
