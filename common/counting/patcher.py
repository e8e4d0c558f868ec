"""Putting the stub in front of functions, and taking it out again, whoever put it there.

In the process there are afterwards, in one piece: a page that says what was patched, the code, the page of settings, and the shared
table (table.py). The page makes the next attach recognise what a debugger left behind that was killed.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from findleaks.counting import remote_syscall as remote
from findleaks.counting import stubcode
from findleaks.counting.free_range import room
from findleaks.counting.proc_memory import ProcMemory
from findleaks.counting.relocate import ROOM, Patch, Refused, jump, relocated
from findleaks.counting.remote_syscall import checked, entry, mapped
from findleaks.counting.table import ENABLED, SHARED, Layout
from findleaks.errors import TargetError
from findleaks.target.base import Region
from findleaks.target.control import PatchHost, ThreadPosition

PAGE = 4096
PIECE = 2048
"""Bytes of code for each function."""
SIGN = b"findleaks stub\0\1"
_HEAD = struct.Struct("<16s4Q")  # the sign, bytes of code, of all, where the table is, patches
_PATCH = struct.Struct("<Q8s8s")
MOST = 128
"""Patches that the page has room for."""
DEEPEST = 8 << 20
"""Bytes of a stack that are searched for an address of the stub."""
TRIES, PAUSE = 100, 0.004
"""Times, and seconds, that the process is let run so that its threads leave a place."""
_RW, _RX, _PRIVATE, _SHARED, _ANONYMOUS, _NO_REPLACE = 3, 5, 2, 1, 0x20, 0x100000
_WIPE_ON_FORK = 18

Read = Callable[[int, int], bytes]


class Patched(NamedTuple):
    address: int
    original: bytes
    jump: bytes


class Stub(NamedTuple):
    """What is in the process: `size` bytes at `address`, the first `code` of them code."""

    address: int
    code: int
    size: int
    patches: tuple[Patched, ...]

    @property
    def table(self) -> int:
        return self.address + self.code

    def page(self) -> bytes:
        """The first page."""
        rows = b"".join(_PATCH.pack(one.address, one.original, one.jump) for one in self.patches)
        return _HEAD.pack(SIGN, self.code, self.size, self.table, len(self.patches)) + rows


def found(regions: Iterable[Region], read: Read) -> list[Stub]:
    """The stubs that are in a process."""
    made = []
    for region in regions:
        if not (region.executable and region.private and not region.writable and not region.name and region.size >= 2 * PAGE):
            continue
        head = read(region.start, PAGE)
        if len(head) < PAGE or not head.startswith(SIGN):
            continue
        _, code, size, table, count = _HEAD.unpack_from(head)
        if table != region.start + code or code != region.size or not code < size <= 1 << 28 or count > MOST:
            continue
        rows = [_PATCH.unpack_from(head, _HEAD.size + _PATCH.size * number) for number in range(count)]
        patches = tuple(Patched(address, old[:ROOM], new[:ROOM]) for address, old, new in rows)
        made.append(Stub(region.start, code, size, patches))
    return made


class Plan(NamedTuple):
    """`patches` of functions that are counted, each with its key; those at `steps` change the thread's depth by so much."""

    patches: Sequence[tuple[Patch, int]]
    steps: Sequence[tuple[Patch, int]]


def install(
    host: PatchHost, memory: ProcMemory, plan: Plan, settings: Callable[[Layout], bytes], program: str
) -> tuple[Stub, Layout, mmap.mmap]:
    """Put it there, not enabled yet. TargetError when that cannot be done: the process is then as it was."""
    every = [*plan.patches, *plan.steps]
    if len(every) > MOST:
        raise Refused(f"{len(every)} functions are to be patched, more than {MOST}")
    code = PAGE + (PIECE * len(every) + PAGE - 1 & -PAGE)
    size = code + Layout(0).size
    _clear(host, memory.read, [(patch.address + 1, patch.address + patch.size) for patch, _ in every])
    regions = mapped(host.pid)
    base = room(regions, size, [patch.address for patch, _ in every], program)
    if base is None:
        raise Refused(f"memory cannot be had near {every[0][0].address:#x}: no {size:,} bytes are free within 2 GiB")
    layout = Layout(base + code)
    patched = tuple(
        Patched(patch.address, patch.original, jump(patch.address, base + PAGE + PIECE * number)) for number, (patch, _) in enumerate(every)
    )
    stub = Stub(base, code, size, patched)
    text = _code(plan, stub)
    syscall = entry(regions, memory.read)

    def map_at(address: int, length: int, access: int, how: int, descriptor: int = -1) -> None:
        got = checked("mmap", host.call(syscall, remote.MMAP, address, length, access, how | _NO_REPLACE, descriptor, 0))
        if got != address:  # a kernel before 4.17 takes the address for a hint
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
        shared = _opened(host.pid, descriptor, layout.size - SHARED)
        host.call(syscall, remote.MADVISE, layout.address, SHARED, _WIPE_ON_FORK)  # since Linux 4.14
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


def _opened(pid: int, descriptor: int, size: int) -> mmap.mmap:
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
        made += piece.ljust(PIECE, b"\xcc")
    return bytes(made)


def enable(memory: ProcMemory, stub: Stub, on: bool) -> None:
    """Let calls be counted, or pass."""
    memory.write(stub.table + ENABLED, bytes((on,)).ljust(8, b"\0"))


def restore(host: PatchHost, memory: ProcMemory, stub: Stub) -> list[Patched]:
    """Give functions their bytes back; those that hold other bytes than our jump are left as they are, and returned if these are not the
    original ones either."""
    odd = []
    for one in stub.patches:
        now = memory.read(one.address, ROOM)
        if now == one.jump:
            host.write(one.address, one.original)
        elif now != one.original:
            odd.append(one)
    return odd


def settle(host: PatchHost, read: Read, stub: Stub, run: bool) -> Optional[str]:
    """Wait until no thread is inside the stub; where one is, or will return there. The process is let run a little meanwhile, if `run`."""
    where = None
    for _ in range(TRIES if run else 1):
        where = standing(host.places(), mapped(host.pid), read, [(stub.address, stub.address + stub.code)])
        if where is None or not run:
            return where
        if host.run(PAUSE).why != "time":
            return where
    return where


def unmap(host: PatchHost, read: Read, stub: Stub) -> None:
    """Give the memory back."""
    checked("munmap", host.call(entry(mapped(host.pid), read), remote.MUNMAP, stub.address, stub.size))


def _clear(host: PatchHost, read: Read, ranges: Sequence[tuple[int, int]]) -> None:
    """See that no thread stands where bytes are to change."""
    for _ in range(TRIES):
        where = standing(host.places(), mapped(host.pid), read, ranges)
        if where is None:
            return
        if host.run(PAUSE).why != "time":
            break
    raise Refused(f"{where}, in the bytes that are to be patched: try again")


def standing(places: Sequence[ThreadPosition], regions: Sequence[Region], read: Read, ranges: Sequence[tuple[int, int]]) -> Optional[str]:
    """The first thread that is in one of these ranges, or has an address of one on its stack, in words."""
    for place in places:
        if any(low <= place.pc < high for low, high in ranges):
            return f"thread {place.tid} stands at {place.pc:#x}"
    for place in places:
        end = next((region.end for region in regions if place.sp in region), place.sp)
        data = read(place.sp & -8, min(end - place.sp, DEEPEST))
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
