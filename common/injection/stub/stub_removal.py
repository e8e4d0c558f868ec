"""Remove stubs: after counting, and stubs that killed debuggers left. This also works without a
debugger, or in a debugger that cannot inject system calls."""

from __future__ import annotations

import time
from typing import Optional

from findleaks.errors import TargetError
from findleaks.injection.remote_syscall import Remote, read_mappings
from findleaks.injection.stub.patcher import (
    LEAVE_SECONDS,
    PAUSE,
    Stub,
    abandon,
    describe_thread_in,
    find_stubs,
    limited_tries,
    restore,
    settle,
    unmap,
)
from findleaks.injection.stub.proc_memory import ProcMemory, writable_memory
from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost, Outcome, PatchHost, ThreadPosition
from findleaks.target.ptrace import Tracer

ANSWER_SECONDS = 5.0  # seconds after counting during which threads that still wait get an answer


class StoppedProcess:
    """A process that another program has stopped. It can be written to. It can neither be resumed
    nor make system calls."""

    def __init__(self, target: Target, memory: ProcMemory) -> None:
        assert target.pid is not None
        self.pid = target.pid
        self._target, self._memory = target, memory

    def open_target(self) -> Target:
        return self._target

    def write(self, address: int, data: bytes) -> None:
        self._memory.write(address, data)

    def places(self) -> list[ThreadPosition]:
        return [ThreadPosition(thread.tid, thread.pc, thread.sp) for thread in self._target.threads()]

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        raise TargetError("this debugger cannot inject system calls")

    def run(self, seconds: Optional[float]) -> Outcome:
        return Outcome("stop")


def clean(pid: int) -> bool:
    """Remove all stubs from a process that is not traced. The process is stopped briefly. Returns
    whether no stub is left."""
    memory = writable_memory(pid)
    host = _TracedProcess(pid, memory)
    try:
        for _ in limited_tries():
            tracer = Tracer(pid, X86_64)
            try:
                tracer.stop(host.work)
            except TargetError:
                return False
            tracer.release()
            if host.done:
                return True
            time.sleep(PAUSE)
        return False
    finally:
        memory.close()


class _TracedProcess(StoppedProcess):
    """A process traced by the thread that runs `work`."""

    def __init__(self, pid: int, memory: ProcMemory) -> None:
        self.pid, self._memory = pid, memory
        self._remote = Remote(pid)
        self.done = False

    def places(self) -> list[ThreadPosition]:
        return self._remote.places()

    def call(self, instruction: int, number: int, *arguments: int) -> int:
        return self._remote.call(instruction, number, *arguments)

    def work(self) -> None:
        """Disable the process's stubs, and remove those that no thread is in. `done`: whether no
        stub is left."""
        stubs = find_stubs(read_mappings(self.pid), self._memory.read)
        for stub in stubs:
            abandon(self._memory, stub)
            if restore(self, self._memory, stub):
                continue
            if (
                describe_thread_in(self.places(), read_mappings(self.pid), self._memory.read, [(stub.address, stub.address + stub.code)])
                is None
            ):
                unmap(self, self._memory.read, stub)
        self.done = not find_stubs(read_mappings(self.pid), self._memory.read)


def remove_leftover_stubs(target: Target, host: Optional[InjectionHost] = None) -> list[str]:
    """Remove stubs that an earlier command left in a stopped process. Returns a line for each.
    Without `host`, the target's injection host is used if there are any stubs."""
    if target.pid is None or target.arch.name != X86_64.name:
        return []
    regions = target.regions()
    if not find_stubs(regions, lambda address, size: _read(target, address, size)):
        return []
    try:
        memory = writable_memory(target.pid)
    except TargetError as error:
        return [f"an earlier count --inject or track was killed, and its stub cannot be removed: {error}"]
    try:
        host = host or target.injection_host()
        if host is None:
            return tidy(StoppedProcess(target, memory), memory)
        host.begin()
        host.hold()
        try:
            return tidy(host, memory)
        finally:
            host.close()
    finally:
        memory.close()


def _read(target: Target, address: int, size: int) -> bytes:
    try:
        return target.read(address, size)
    except TargetError:
        return b""


def remove_stub(host: PatchHost, memory: ProcMemory, stub: Stub, run: bool, answered: bool = False) -> list[str]:
    """Restore the functions and unmap the stub. Returns a line for each failure.
    If requests are still `answered`, threads that wait for an answer get ANSWER_SECONDS. Their
    calls are already counted, and would otherwise have no stack."""
    notes = [f"{one.address:#x} contains other bytes than the jump of the stub; it was not restored" for one in restore(host, memory, stub)]
    where = "" if notes else settle(host, memory.read, stub, run, ANSWER_SECONDS if answered else LEAVE_SECONDS)
    if memory.read(stub.table, 1):  # empty if the process has ended
        abandon(memory, stub)
    if where and answered:
        where = settle(host, memory.read, stub, run)
    if not notes and where is None:
        try:
            unmap(host, memory.read, stub)
        except TargetError as error:
            where = str(error)
    if where:
        notes.append(f"{where}: the {stub.size:,} bytes at {stub.address:#x} stay mapped, without effect")
    return notes


def tidy(host: PatchHost, memory: ProcMemory) -> list[str]:
    """Remove the stubs of killed debuggers. Returns a line for each."""
    notes = []
    for stub in find_stubs(read_mappings(host.pid), memory.read):
        live = [one for one in stub.patches if memory.read(one.address, len(one.jump)) == one.jump]
        abandon(memory, stub)
        problems = remove_stub(host, memory, stub, True)
        if live or not problems:
            taken = f"its stub at {stub.address:#x} was removed, {len(live)} function(s) restored"
            notes.append(f"an earlier count --inject or track was killed: {taken}")
        notes += problems
    return notes
