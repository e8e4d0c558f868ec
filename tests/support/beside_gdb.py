"""Compare the stacks that `track` records with GDB's backtraces of the same calls, while `track` records in the process.

One breakpoint is at the entry of an allocator's function; another is at the routine that then records the block. At the second one, the
frame of findleaks' stub contains the stack that the stub found, and the stack pointer at the function's entry. GDB and the stub both unwind
by call frame information. Where a function has none, GDB would guess. If that function is V8's, which keeps frame pointers, an unwinder in
Python follows the frame pointers instead. Frames of inlined functions and of tail calls, which GDB knows from debug information, are left
out.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from counts import code, until
from debuggers import PATIENCE, environment

from findleaks.injection.remote_syscall import read_mappings
from findleaks.injection.stub.patcher import find_stubs
from findleaks.injection.stub.proc_memory import writable_memory
from findleaks.injection.stub.relocate import Patch
from findleaks.target.live import LiveTarget
from findleaks.tracking.generated import track as trackcode
from findleaks.tracking.hooks import find_hooks

RECORD, REVIVE = 0x98, 0xA8  # words of the table: address of the routine that records a block, and of the routine for a failed realloc
SCRIPT = """
import gdb, json
from gdb.unwinder import Unwinder, register_unwinder

WORD = gdb.lookup_type("unsigned long")
STACK, ADDRESS = -16, (1 << 61) - 1  # in the stub's frame: its stack's node; of a node's key: the address
described, entered = {}, {}

def register(frame, name):
    return int(frame.read_register(name).cast(WORD))

def word(address):
    return int.from_bytes(gdb.selected_inferior().read_memory(address, 8), "little")

class Identity:
    def __init__(self, sp, pc):
        self.sp, self.pc = gdb.Value(sp).cast(WORD), gdb.Value(pc).cast(WORD)

class FramePointers(Unwinder):
    def __call__(self, pending):
        pc = int(pending.read_register("rip").cast(WORD))
        if pc not in described:
            symbol = gdb.execute(f"info symbol {pc}", to_string=True)
            described[pc] = not symbol.startswith(("No symbol", "Builtins_"))
        if described[pc]:
            return None
        pointer, sp = (int(pending.read_register(name).cast(WORD)) for name in ("rbp", "rsp"))
        caller = (word(pointer + 8), word(pointer), pointer + 16) if pointer >= sp else (0, 0, sp)  # V8 is replacing a frame
        made = pending.create_unwind_info(Identity(caller[2], pc))
        for name, value in zip(("rip", "rbp", "rsp"), caller):
            made.add_saved_register(name, gdb.Value(value).cast(WORD))
        return made

def backtrace():
    frame, made = gdb.newest_frame(), []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            made.append(frame.pc())
        frame = frame.older()
    return made

def walked(node):
    made = [] if not node & 1 else [0]  # not followed to its end
    node &= ~1
    while node:
        made.append(word(node) & ADDRESS)
        node = word(node + 8)
    return made[::-1]

class Entry(gdb.Breakpoint):
    def stop(self):
        entered[gdb.selected_thread().ptid, register(gdb.newest_frame(), "rsp")] = backtrace()
        return False

class Record(gdb.Breakpoint):
    def stop(self):
        if REVIVE <= word(register(gdb.newest_frame(), "rsp")) < END:
            return False  # the block was recorded when another call allocated it
        pointer = register(gdb.newest_frame(), "rbp")
        theirs = entered.pop((gdb.selected_thread().ptid, pointer + 8), None)
        if theirs is not None:  # else it was entered before
            output.write(json.dumps([theirs, walked(word(pointer + STACK))]) + "\\n")
            output.flush()
        return False

if POINTERS:
    register_unwinder(None, FramePointers("frame pointers"))
output = open(OUTPUT, "w")
for address in ENTRIES:
    Entry(f"*{address}", internal=True)
Record(f"*{RECORD}", internal=True)
"""
GDB = ("gdb", "-nx", "-batch")
SETTINGS = ("set pagination off", "handle all nostop noprint pass", "set print thread-events off", "set backtrace past-main on")


class Call(NamedTuple):
    """Program counters of one call's stack, innermost first, from GDB and from `track`. A 0 at the end: the stack cannot be followed
    further."""

    gdb: tuple[int, ...]
    track: tuple[int, ...]


class Calls:
    """The calls that were compared so far."""

    def __init__(self, output: Path) -> None:
        self._output = output

    def __len__(self) -> int:
        return len(self._lines())

    def distinct(self) -> int:
        return len(set(self._lines()))

    def _lines(self) -> list[bytes]:
        return self._output.read_bytes().splitlines() if self._output.exists() else []

    def __iter__(self) -> Iterator[Call]:
        for theirs, ours in map(json.loads, self._output.read_text().splitlines()):
            yield Call(tuple(theirs), tuple(ours))

    def differing(self) -> list[Call]:
        return [call for call in self if call.gdb != call.track]


@contextmanager
def compare_calls(pid: int, folder: Path, frame_pointers: bool = False) -> Iterator[Calls]:
    """Context manager that compares all calls until it ends. `frame_pointers`: code without call frame information (JIT-compiled code, or
    V8's built-in functions) keeps frame pointers."""
    script, output = folder / "entries.py", folder / "calls"
    with closing(LiveTarget(pid)) as target, closing(writable_memory(pid)) as memory:
        made, _ = find_hooks(target, lambda address, name: Patch(address, address, 0, b"", (), b""))
        entries = [hook.address for hook, _ in made if hook.kind != "freeing"]
        (stub,) = find_stubs(read_mappings(pid), memory.read)
        record, revive = (int.from_bytes(memory.read(stub.table + at, 8), "little") for at in (RECORD, REVIVE))
    end = revive - trackcode.REVIVE + len(trackcode.ROUTINES)
    values = {"ENTRIES": entries, "RECORD": record, "REVIVE": revive, "END": end, "OUTPUT": str(output), "POINTERS": frame_pointers}
    script.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()) + SCRIPT)
    options = ["-iex", "set debuginfod enabled off", *(word for setting in SETTINGS for word in ("-ex", setting))]
    work = ["-p", str(pid), "-x", str(script), "-ex", "continue", "-ex", "detach"]
    log = folder / "gdb"
    with open(log, "wb") as file, subprocess.Popen([*GDB, *options, *work], stdout=file, stderr=file, env=environment()) as debugger:
        try:
            at = {hex(address): address for address in (*entries, record)}
            until(lambda: debugger.poll() is not None or {data[0] for data in code(pid, at).values()} == {0xCC}, "the breakpoints")
            assert debugger.poll() is None, log.read_text()
            yield Calls(output)
        finally:
            debugger.send_signal(signal.SIGINT)
            debugger.wait(PATIENCE)
    until(lambda: "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text(), "GDB to let go")
