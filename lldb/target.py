"""LLDB's selected process as a target.

A core or a minidump is read from its file, and a live process of this machine through /proc. LLDB's
ReadMemory is 40 times slower there, and may return fewer bytes than requested. Threads and
registers of a live process come from LLDB, which controls it. Processes on other machines are read
with LLDB's API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import lldb
from findleaks.debugger_session import NO_PROCESS, RUNNING, Subject, is_traced_by, open_core_subject
from findleaks.errors import TargetError, UsageError
from findleaks.lldb.source import with_sources
from findleaks.target.arch import Arch
from findleaks.target.base import Thread, order_threads
from findleaks.target.files import MINIDUMP, open_regular
from findleaks.target.live import LiveTarget
from findleaks.target.ptrace import has_ended, system_call
from findleaks.target.register_words import debugger_thread
from findleaks.target.thread_pointers import add_thread_pointers

if TYPE_CHECKING:
    from findleaks.lldb.counting import LldbBreakpoints
    from findleaks.lldb.interrupt import Interrupts

CORE_FILES = ("elf-core", "minidump")  # LLDB's plugins for files that findleaks reads itself.
SELECT_SYSROOT = "Load the core again after `platform select --sysroot DIR remote-linux`."


def subject(debugger: Any, context: Any, interrupts: Optional[Interrupts]) -> Subject:
    """The selected process. `interrupts`: for Ctrl-C. Raises TargetError if there is no process, or
    if it is running."""
    target = context.GetTarget() if context is not None else debugger.GetSelectedTarget()
    process = target.GetProcess()
    state = process.GetState() if process.IsValid() else lldb.eStateInvalid
    if state in (lldb.eStateRunning, lldb.eStateStepping, lldb.eStateLaunching, lldb.eStateAttaching):
        raise TargetError(f"{RUNNING} (Ctrl-C, or `process interrupt`)")
    if state not in (lldb.eStateStopped, lldb.eStateCrashed, lldb.eStateSuspended):
        raise TargetError(NO_PROCESS)
    owner = process.GetUniqueID()
    if process.GetPluginName() in CORE_FILES:
        return open_core_subject(owner, core_path(process), _exe(target), sysroot(debugger), SELECT_SYSROOT, partial(with_sources, target))
    pid, stop = process.GetProcessID(), process.GetStopID(True)
    if process.GetPluginName() == "gdb-remote" and is_traced_by(pid, os.getpid()):
        if has_ended(pid):
            # The process was killed. LLDB notices this after a moment, or when it continues the
            # process.
            raise TargetError(NO_PROCESS)
        return Subject(owner, ("process", pid, stop), True, lambda: LldbProcess(pid, process, interrupts), reports_writes=False)
    from findleaks.lldb.remote import open_remote

    return Subject(owner, ("remote", pid, stop), True, lambda: open_remote(pid, process, sysroot(debugger)), reports_writes=False)


def core_path(process: Any) -> str:
    if hasattr(process, "GetCoreFile"):  # Exists since LLDB 17.
        spec = process.GetCoreFile()
        if spec.IsValid():
            return str(spec.fullpath)
    found = sorted(mapped_cores("/proc/self/maps"))
    if len(found) != 1:
        what = f"has {len(found)} core files loaded: load one only" if found else "does not report which core file it has loaded"
        raise TargetError(f"this LLDB {what}, or use findleaks outside of it")
    return found[0]


def mapped_cores(maps: str) -> set[str]:
    """Core files that are mapped into a process: older LLDBs map cores, and do not report their
    names."""
    with open(maps, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if line.count(" /")}
    return {path for path in paths if _is_core(path)}


def _is_core(path: str) -> bool:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            head = file.read(18)
    except OSError:
        return False
    if head[:4] == MINIDUMP:
        return True
    return head[:4] == b"\x7fELF" and int.from_bytes(head[16:18], "little" if head[5:6] == b"\x01" else "big") == 4


def _exe(target: Any) -> str:
    spec = target.GetExecutable()
    path = str(spec.fullpath) if spec.IsValid() and spec.fullpath else ""
    # If the user gave no program, LLDB makes up a name from the core.
    return path if os.path.exists(path) else ""


def sysroot(debugger: Any) -> str:
    """The sysroot that the user has set: a folder with the files of another machine; "" if it is
    this machine."""
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand("platform status", result)
    match = re.search(r"^\s*Sysroot: (.+)$", result.GetOutput() or "", re.MULTILINE)
    return match[1].strip().rstrip("/") if match else ""


class LldbProcess(LiveTarget):
    """A process of this machine that LLDB has stopped."""

    trackable = False  # LLDB does not make system calls in the process.

    def __init__(self, pid: int, process: Any, interrupts: Optional[Interrupts] = None) -> None:
        super().__init__(pid, stopped=True)
        self._process, self._interrupts = process, interrupts
        with_sources(process.GetTarget(), self)
        self._threads: Optional[list[Thread]] = None

    def read_code(self, address: int, size: int) -> bytes:
        """See Target. LLDB returns the original bytes, not its breakpoints."""
        # Read through /proc first: this determines which bytes are readable. LLDB rejects a size of
        # 0.
        code = self.read(address, size)
        data = self._process.ReadMemory(address, size, lldb.SBError()) if code else None
        return bytes(data) if data and len(data) == size else code

    def threads(self) -> Sequence[Thread]:
        if self._threads is None:
            # LLDB before 17 does not report fs_base.
            found = add_thread_pointers(self, order_threads(threads(self._process, self.arch), self._pid))
            self._threads = [self._with_system_call(thread) for thread in found]
        return self._threads

    def _with_system_call(self, thread: Thread) -> Thread:
        """The thread with its system call in orig_rax, which the kernel reports, and LLDB does
        not."""
        call = system_call(self._pid, thread.tid)
        if call is None or "orig_rax" in thread.registers or "orig_rax" not in self.arch.registers:
            return thread
        return thread._replace(registers={**thread.registers, "orig_rax": call & self.arch.mask})

    def breakpoint_host(self) -> LldbBreakpoints:
        from findleaks.lldb.counting import LldbBreakpoints

        return LldbBreakpoints(self._pid, self._process, self._interrupts)


def threads(process: Any, arch: Arch) -> Iterator[Thread]:
    """Threads with the registers of their innermost frames; the user's selection stays."""
    for index in range(process.GetNumThreads()):
        thread = process.GetThreadAtIndex(index)
        yield _thread(thread.GetThreadID(), thread.GetFrameAtIndex(0), arch)


_RENAMED = {"rflags": "eflags"}  # Register names that differ: LLDB's and findleaks'.


def _thread(tid: int, frame: Any, arch: Arch) -> Thread:
    registers: dict[str, int] = {}
    wide: dict[str, Any] = {}
    for registers_of_set in frame.GetRegisters():
        for register in registers_of_set:
            name = _RENAMED.get(register.GetName(), register.GetName())
            if register.GetByteSize() == arch.word:
                if name in arch.registers:
                    registers[name] = register.GetValueAsUnsigned() & arch.mask
            elif register.GetByteSize() >= 2 * arch.word:
                number = re.sub(r"^[xyz]mm", "", name)
                if number not in wide or register.GetByteSize() > wide[number].GetByteSize():
                    # xmm, ymm, zmm: each contains the previous one.
                    wide[number] = register
    for name in arch.all_registers:
        if name not in registers:  # LLDB has two names for some registers.
            register = frame.FindRegister(arch.debugger_name(name))
            if register.IsValid() and register.GetByteSize() == arch.word:
                registers[name] = register.GetValueAsUnsigned() & arch.mask
    return debugger_thread(arch, tid, registers, ((register.GetName(), _words(register, arch)) for register in wide.values()))


def _words(register: Any, arch: Arch) -> tuple[int, ...]:
    data = register.GetData()
    size = data.GetByteSize() // arch.word * arch.word
    # LLDB knows the register, but not its content.
    if not size:
        return ()
    error = lldb.SBError()
    raw = data.ReadRawData(error, 0, size)
    return arch.unpack(raw) if error.Success() and raw else ()


def evaluate(context: Any, expression: str) -> int:
    """The address that an expression denotes: the value of a pointer or number, the location of an
    array, structure or function.

    The expression must not call functions of the process, which must stay stopped. Variables and
    registers are looked up first: LLDB compiles all other expressions, which is slow."""
    value = _from_variables(context, expression)
    if value is None:
        value = _from_compiler(context, expression)
    kind = value.GetType().GetCanonicalType()
    if kind.IsReferenceType():
        value = value.Dereference()
        kind = value.GetType().GetCanonicalType()
    if kind.GetTypeClass() & _PLACES:
        # The value of an expression has no address, even if it refers to an object of the process.
        value = _from_compiler(context, f"&({expression})")
    elif kind.GetTypeFlags() & lldb.eTypeIsFloat:
        raise UsageError(f"{expression!r} is not an address, but a {kind.GetName()}")
    error = lldb.SBError()
    number = value.GetValueAsUnsigned(error, 0)
    if error.Fail():
        raise UsageError(f"{expression!r} is not an address: {_first_line(error.GetCString())}")
    return int(number)


_PLACES = lldb.eTypeClassArray | lldb.eTypeClassStruct | lldb.eTypeClassClass | lldb.eTypeClassUnion | lldb.eTypeClassFunction
"""Types of expressions whose address is used, not their value."""


def _from_compiler(context: Any, expression: str) -> Any:
    options = lldb.SBExpressionOptions()
    options.SetAllowJIT(False)
    options.SetSuppressPersistentResult(True)
    options.SetFetchDynamicValue(lldb.eNoDynamicValues)
    frame = context.GetFrame()
    value = (frame if frame.IsValid() else context.GetTarget()).EvaluateExpression(expression, options)
    error = value.GetError()
    if error.Fail():
        raise UsageError(f"{expression!r} is not an address: {_first_line(error.GetCString())}")
    return value


def _from_variables(context: Any, expression: str) -> Optional[Any]:
    frame = context.GetFrame()
    if not frame.IsValid():
        return None
    if expression.startswith("$"):
        register = frame.FindRegister(expression[1:])
        return register if register.IsValid() else None
    if not re.fullmatch(r"[\w&*.>\[\]-]+", expression):
        return None
    found = frame.GetValueForVariablePath(expression, lldb.eNoDynamicValues)
    return found if found.IsValid() and found.GetError().Success() else None


def _first_line(text: Optional[str]) -> str:
    """The compiler's first message, without its location in a generated file."""
    for line in (text or "").splitlines():
        line = re.sub(r"^(error:\s*)?(<user expression[^>]*>:\d+:\d+:\s*)?(error:\s*)?", "", line.strip())
        if line and not re.fullmatch(r"[\s^~|\d]*", line):
            return line
    return "it cannot be evaluated"
