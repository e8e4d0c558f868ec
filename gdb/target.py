"""GDB's selected inferior as a target.

A core is read from its file, and a live process of this machine through /proc. This is many times
faster than GDB's read_memory, and gives the same results as the command line. Threads and registers
of a live process come from GDB, which controls it. Processes on other machines (gdbserver) are read
with GDB's API."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import gdb
from findleaks.debugger_session import NO_PROCESS, RUNNING, Subject, is_traced_by, open_core_subject
from findleaks.errors import TargetError, UsageError
from findleaks.gdb.source import with_sources
from findleaks.quoting import shell_quoted
from findleaks.target.arch import Arch
from findleaks.target.base import Thread, order_threads
from findleaks.target.files import MINIDUMP, open_regular, read_file
from findleaks.target.live import LiveTarget
from findleaks.target.register_words import debugger_thread
from findleaks.target.thread_pointers import add_thread_pointers

if TYPE_CHECKING:
    from findleaks.gdb.counting import GdbBreakpoints
    from findleaks.gdb.inject import GdbInjection

SET_SYSROOT = "Run `set sysroot DIR`, and repeat the command."
_LOCAL_CORE = re.compile(r"core dump file:\s*[`'‘](?P<path>.*?)['’], file type", re.DOTALL)
_STRATUM = re.compile(r"^\s*-\s+(\S+)", re.MULTILINE)


def subject() -> Subject:
    """The inferior that the user has selected. Raises TargetError if it has no process or core, or
    if it is running."""
    inferior = gdb.selected_inferior()
    if not inferior.is_valid() or not inferior.pid:
        raise TargetError(_without_process("/proc/self/cmdline"))
    strata = _strata()
    if "core" in strata:
        return open_core_subject(inferior.num, core_path(inferior), _exe(), sysroot(), SET_SYSROOT, with_sources)
    if any(thread.is_running() for thread in inferior.threads()):
        raise TargetError(f"{RUNNING} (Ctrl-C, or `interrupt`)")
    pid = inferior.pid
    if is_traced_by(pid, os.getpid()):
        return Subject(inferior.num, ("process", pid), True, lambda: GdbProcess(pid, inferior))
    from findleaks.gdb.remote import open_remote

    return Subject(inferior.num, ("remote", pid), True, lambda: with_sources(open_remote(pid, inferior)))


def _without_process(words: str) -> str:
    """What to do if there is no process or core. GDB refuses minidumps with a message that users
    easily miss. So this function searches GDB's arguments (in the file `words`) for a minidump."""
    for word in read_file(words).split(b"\0"):
        dump = os.fsdecode(word.rpartition(b"=")[2])
        try:
            with os.fdopen(open_regular(dump), "rb") as file:
                found = file.read(4) == MINIDUMP
        except (OSError, ValueError):
            continue
        if found:
            name = shell_quoted(dump)
            return f"{dump}: a minidump, which GDB cannot load: `shell findleaks find {name}`, or in a shell `lldb -c {name}`"
    return NO_PROCESS


def _strata() -> set[str]:
    """Names of the targets on GDB's stack for this inferior: core, native, remote, …"""
    return set(_STRATUM.findall(gdb.execute("maintenance print target-stack", to_string=True)))


def core_path(inferior: Any) -> str:
    corefile = getattr(inferior, "corefile", None)  # Exists since GDB 17.
    if corefile is not None:
        return _name(lambda: corefile.filename)
    match = _LOCAL_CORE.search(print_command("info files"))
    if match is None:
        raise TargetError("GDB does not report which core file it has loaded; load it again with `core-file FILE`")
    return match["path"]


def print_command(command: str) -> str:
    """The output of a GDB command.

    GDB decodes it strictly, and fails on file names that are not valid text. In this case the
    command prints to a file, which needs a newer GDB than 9."""
    try:
        return str(gdb.execute(command, to_string=True))
    except UnicodeDecodeError:
        with tempfile.TemporaryDirectory(prefix="findleaks-") as folder:
            file = Path(folder, "printed")
            gdb.execute(f"pipe {command} | cat >{shell_quoted(str(file))}")
            return os.fsdecode(file.read_bytes())


def _name(ask: Callable[[], object]) -> str:
    """A name from GDB, "" for None. If GDB's strict decoding (host-charset) fails, it is decoded
    byte by byte."""
    try:
        return str(ask() or "")
    except UnicodeDecodeError:
        kept = gdb.parameter("host-charset")
        gdb.execute("set host-charset ISO-8859-1", to_string=True)
        try:
            return os.fsdecode(str(ask() or "").encode("latin-1"))
        finally:
            gdb.execute(f"set host-charset {kept}", to_string=True)


def _exe() -> str:
    """The program that the user passed to GDB; "" if there is none. In this case, its name is in
    the core's notes."""
    return _name(lambda: gdb.current_progspace().filename)


def sysroot() -> str:
    """The sysroot that the user has set: a folder with the files of another machine; "" if it is
    this machine."""
    return re.sub(r"^(target|remote):", "", _name(lambda: gdb.parameter("sysroot"))).rstrip("/")


class GdbProcess(LiveTarget):
    """A process of this machine that GDB has stopped."""

    def __init__(self, pid: int, inferior: Any) -> None:
        super().__init__(pid, stopped=True)
        self._inferior = inferior
        self._threads: Optional[list[Thread]] = None
        with_sources(self)

    def read_code(self, address: int, size: int) -> bytes:
        """See Target. GDB returns the original bytes, not its breakpoints."""
        # Read through /proc first: this determines which bytes are readable. GDB's read_memory
        # fails
        # if a single byte is unreadable.
        code = self.read(address, size)
        try:
            return bytes(self._inferior.read_memory(address, size)) if code else code
        except gdb.MemoryError:
            return code

    def threads(self) -> Sequence[Thread]:
        if self._threads is None:
            found = order_threads(threads(self._inferior, self.arch), self._pid)
            self._threads = add_thread_pointers(self, found) if self.arch.thread_pointer_note else found
        return self._threads

    def breakpoint_host(self) -> GdbBreakpoints:
        from findleaks.gdb.counting import GdbBreakpoints

        return GdbBreakpoints(self._pid, self._inferior)

    def injection_host(self) -> GdbInjection:
        from findleaks.gdb.inject import GdbInjection

        return GdbInjection(self._pid, self._inferior)


@contextmanager
def selection_kept() -> Iterator[None]:
    """Restore the user's selected thread and frame at the end of the `with` block."""
    thread = gdb.selected_thread()
    try:
        frame: Optional[Any] = gdb.selected_frame()
    except gdb.error:
        frame = None
    try:
        yield
    finally:
        if thread is not None and thread.is_valid():
            thread.switch()
            if frame is not None and frame.is_valid():
                frame.select()


def threads(inferior: Any, arch: Arch) -> Iterator[Thread]:
    """Threads with the registers of their innermost frames."""
    with selection_kept():
        for thread in inferior.threads():
            if thread.is_valid() and not thread.is_exited():
                thread.switch()
                yield _thread(thread, gdb.newest_frame(), arch)


def _thread(thread: Any, frame: Any, arch: Arch) -> Thread:
    registers: dict[str, int] = {}
    for name in arch.all_registers:
        try:
            registers[name] = int(frame.read_register(arch.debugger_name(name))) & arch.mask
        # GDB uses another name for it, or the remote side lacks it.
        except (ValueError, gdb.error):
            continue
    tid = thread.ptid[1] or thread.ptid[2] or thread.ptid[0]
    return debugger_thread(arch, tid, registers, ((name, _words(frame, name, arch)) for name in _wide_registers(frame)))


def _wide_registers(frame: Any) -> list[str]:
    """Names of the widest vector registers of this machine."""
    architecture = frame.architecture()
    if hasattr(architecture, "registers"):  # Exists since GDB 11.
        names = {descriptor.name for descriptor in architecture.registers("vector")}
    else:
        names = {f"{width}mm{i}" for width in "xyz" for i in range(32)} | {f"v{i}" for i in range(32)}
    best: dict[str, str] = {}
    for name in sorted(names):  # xmm, ymm, zmm: each contains the previous one.
        best[re.sub(r"^[xyz]mm", "", name)] = name
    return sorted(best.values())


def _words(frame: Any, name: str, arch: Arch) -> list[int]:
    """The words of a vector register, from GDB's union of its divisions. The division into integers
    of word size is used. On x86 it is a direct member (v2_int64), on Arm a member of a division of
    this size (d.u)."""
    try:
        value = frame.read_register(name)
        fields = [field.name for field in value.type.fields()]
        wanted = [field for field in fields if re.fullmatch(rf"v\d+_int{8 * arch.word}", field)]
        if wanted:
            vector = value[wanted[0]]
        elif "d" in fields and arch.word == 8:
            vector = value["d"]["u"]
        else:
            return []
        low, high = vector.type.range()
        return [int(vector[i]) & arch.mask for i in range(low, high + 1)]
    except (TypeError, ValueError, gdb.error):
        return []


def evaluate(expression: str) -> int:
    """The address that an expression denotes: the value of a pointer or number, the location of an
    array, structure or function. The expression must not call functions of the process, which must
    stay stopped."""
    try:
        with _no_calls():
            value = gdb.parse_and_eval(expression)
        kind = value.type.strip_typedefs()
        if kind.code in (gdb.TYPE_CODE_REF, getattr(gdb, "TYPE_CODE_RVALUE_REF", gdb.TYPE_CODE_REF)):
            value = value.referenced_value()
            kind = value.type.strip_typedefs()
        if kind.code in (gdb.TYPE_CODE_ARRAY, gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION, gdb.TYPE_CODE_FUNC):
            if value.address is None:
                raise UsageError(f"{expression!r} is not an address, nor does it have one")
            value = value.address
        elif kind.code in (gdb.TYPE_CODE_FLT, gdb.TYPE_CODE_VOID):
            raise UsageError(f"{expression!r} is not an address, but {'a ' if kind.code == gdb.TYPE_CODE_FLT else ''}{value.type}")
        return int(value) & ((1 << 64) - 1)
    except gdb.error as error:
        raise UsageError(f"{expression!r} is not an address: {' '.join(str(error).split())}") from None


@contextmanager
def _no_calls() -> Iterator[None]:
    """Forbid calls of the inferior's functions in the `with` block. Older GDBs lack this
    setting."""
    forbidden = switch("may-call-functions", False)
    try:
        yield
    finally:
        if forbidden:
            switch("may-call-functions", True)


def switch(setting: str, on: bool) -> bool:
    """Change a setting of GDB; return whether its value changed. False if this GDB lacks it."""
    try:
        changed = bool(gdb.parameter(setting)) != on
    except RuntimeError:
        return False
    if changed:
        gdb.execute(f"set {setting} {'on' if on else 'off'}", to_string=True)
    return changed
