"""Stop a busy program of an interpreter, and compare the managed frames that findleaks reads with those that the program prints at the same
stop.

A signal handler of the program prints or stores the frames. It runs before any other instruction of the stopped thread.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Optional

import building
import mallocs_python
import rubies
import truth

import findleaks
from cores import PATIENCE
from findleaks.allocators.memory import Memory
from findleaks.answers.stacks import group_stacks
from findleaks.results.sites import StackFrame
from findleaks.results.stacks import ThreadGroup
from findleaks.target.base import Target
from findleaks.unwind.frames import DEEPEST, FrameRegisters, Unwinder
from findleaks.unwind.managed_frames import ManagedFrames, NativeStack

_TGKILL = 234  # of x86-64
EVALUATOR = "_PyEval_EvalFrameDefault"
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.M)
_QUALIFIER = r"(?:(?<=^)|(?<= ))[A-Z][\w:]*[#.](?=\S+$)"
"""Matches the class that Ruby 3.4 and newer writes before the name of a method."""
_INVALID = "  <invalid frame>\n"
_NONE = "<no Python frame>\n"
"""What `faulthandler` prints while a greenlet switches to another one. Only CPython 3.11 and newer indent this line."""
_OUTERMOST = ("<module>", "_bootstrap")
_INTERNAL = [("__init__", 0, "__init__"), ("<shim>", 0, "<interpreter trampoline>")]
"""The interpreter's own frames, which Python's tracebacks omit. `faulthandler` of 3.14 stops at the first."""

Printed = list[tuple[str, int, str]]
"""File, line (0: none) and function of each frame, innermost first."""

Labelled = Sequence[tuple[str, str, int]]
"""Label, file ("": none) and line (0: none) of each frame, innermost first."""


class HandlerCrashed(Exception):
    """The program's own signal handler ended it. `faulthandler` of CPython 3.11 and 3.12 crashes at instructions before which a frame's
    address is not stored, and so does Ruby's rb_profile_frames ("[BUG] frame2iseq: unreachable")."""


class Busy:
    """A running program. `said` is the part of its output that was read."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self.output, self._at = output, 0
        with open(output, "wb") as file:
            self._process = subprocess.Popen(list(command), env=dict(environment), stdout=file)
        self.pid = self._process.pid

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def read_until(self, pattern: str) -> str:
        """Return what the program printed since the last call, once that ends with a match of `pattern`."""
        limit = time.monotonic() + PATIENCE
        while True:
            with open(self.output, encoding="utf-8") as file:
                file.seek(self._at)
                text = file.read()
            if re.search(f"(?:{pattern})\\Z", text):
                self._at += len(text.encode())
                return text
            if self._process.poll() in (-signal.SIGSEGV, -signal.SIGABRT):
                raise HandlerCrashed(text)
            assert self._process.returncode is None, text
            assert time.monotonic() < limit, text
            time.sleep(0.001)

    def read_line(self, line: str) -> None:
        """Read the first line of the output, once it is printed."""
        limit = time.monotonic() + PATIENCE
        while not self.output.read_text(encoding="utf-8").startswith(line):
            assert time.monotonic() < limit and self._process.poll() is None
            time.sleep(0.001)
        self._at = len(line)

    def stop(self) -> None:
        """Stop all threads, at any instruction."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        limit = time.monotonic() + PATIENCE
        while any(_state(self.pid, tid) != "T" for tid in os.listdir(f"/proc/{self.pid}/task")):
            assert time.monotonic() < limit
            time.sleep(0.001)

    def resume(self, tid: int = 0) -> None:
        """Let the program continue. The thread `tid` (0: none) handles SIGUSR1 first."""
        if tid:
            assert ctypes.CDLL(None).syscall(_TGKILL, self.pid, tid, signal.SIGUSR1) == 0
        os.kill(self.pid, signal.SIGCONT)

    def stacks(self) -> dict[int, ThreadGroup]:
        """Return the stack of each thread; reading them must not produce a warning."""
        with findleaks.attach(self.pid) as process:
            answer = group_stacks(process._session, lines=False)
        assert not [one for one in answer.warnings if one.startswith("frames of")], answer.warnings
        return {tid: group for group in answer.result.stacks for tid in group.threads}


def _state(pid: int, tid: str) -> str:
    """Return the state letter of a thread from /proc; "" if the thread has just ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return ""


def select_managed(stack: ThreadGroup) -> list[StackFrame]:
    """Return the frames of managed functions."""
    return [one for one in stack.frames if one.kind]


class DamagedMemory(Memory):
    """Memory in which some words are replaced by words from other addresses."""

    def __init__(self, memory: Memory, seed: int) -> None:
        super().__init__(memory.target)
        self._random, self._seen = random.Random(seed), [0, 8, 1 << 62]

    def word(self, address: int) -> Optional[int]:
        found = self.words(address, 1)
        return found[0] if found else None

    def words(self, address: int, count: int) -> Optional[tuple[int, ...]]:
        found = super().words(address, count)
        self._seen = [*self._seen, address, *(found or ())][-60:]
        if found is None or self._random.random() > 0.05:
            return found
        return tuple(self._random.choice(self._seen) if self._random.random() < 0.3 else word for word in found)


# -- Python


@contextmanager
def busy_python(python: mallocs_python.Python, folder: Path, source: str = "python_busy_frames.py", *modules: Path) -> Iterator[Busy]:
    """Start a program that executes Python functions in two threads. `modules`: folders with modules that it imports."""
    program = Busy(python.command(str(truth.PROGRAMS / source)), python.environment(*modules), folder / "output")
    try:
        program.read_line("ready\n")
        yield program
    finally:
        program.end()


def resume_python(program: Busy, tid: int) -> tuple[Printed, bool]:
    """Let the program continue. Return the traceback of a thread at the stop, and whether it is complete."""
    program.resume(tid)
    ends = "|".join(rf"in {re.escape(name)}\n" for name in _OUTERMOST)
    text = program.read_until(f"{ends}|{re.escape(_INVALID)}|{re.escape(_NONE)}")
    return [one for one in python_frames(text) if one not in _INTERNAL], not text.endswith(_INVALID)


def python_frames(text: str) -> Printed:
    """Parse the frames in a traceback that `faulthandler` printed."""
    return [(file, int(line) if line.isdigit() else 0, function) for file, line, function in _FRAME.findall(text)]


def as_faulthandler(stack: ThreadGroup) -> Printed:
    """Convert the frames of Python functions to the form of `faulthandler`: with the plain name of the function, in ASCII."""
    frames = [(one.file or "", one.line or 0, (one.function or "").rsplit(".", 1)[-1]) for one in select_managed(stack)]
    return [(_ascii(file), line, _ascii(function)) for file, line, function in frames]


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def check_python_order(stack: ThreadGroup, in_greenlet: bool = False) -> None:
    """Check that each sequence of Python frames precedes the function that executes them, and that each such function has Python frames.
    `in_greenlet`: the native frames that follow the last Python frame and its function may belong to other greenlets."""
    frames = list(stack.frames)
    if in_greenlet:
        frames = frames[: max((at for at, one in enumerate(frames) if one.kind), default=-2) + 2]
    for at, frame in enumerate(frames):
        if frame.function == EVALUATOR and at:
            # The innermost function may not have entered its Python function yet, or may have left it.
            assert frames[at - 1].kind or not any(one.kind for one in frames[:at]), stack
        if frame.kind and not frames[at + 1].kind:
            # The compiler moved parts of the function to another address, without a symbol.
            assert frames[at + 1].function in (EVALUATOR, None), (frames[at], frames[at + 1])


# -- Ruby


@contextmanager
def busy_ruby(version: str, folder: Path, stops: int = 0) -> Iterator[Busy]:
    """Start the program. If `stops` is not 0, the program passes this number of places. At every seventh one, it prints its own backtrace
    and stops."""
    shim = "-" if stops else str(building.compile_program(folder, "ruby_frames_shim.c", "-shared", "-fPIC", name="ruby_frames_shim.so"))
    ruby = rubies.get(version)
    program = Busy([*ruby.words, str(truth.PROGRAMS / "ruby_busy_frames.rb"), shim, str(stops)], ruby.environment, folder / "output")
    try:
        program.read_line("ready\n")
        yield program
    finally:
        program.end()


def ruby_frames(text: str) -> Printed:
    """Parse the frames that the program printed with rb_profile_frames. Leave out methods that are written in C: they have no path, and are
    listed a second time for their internal blocks. Some versions also list the interpreter's first frame, which has no line."""
    found = [(path, int(line), label) for path, line, label in re.findall(r"^(.+):(\d+):(.*)$", text, re.M)]
    return found[:-1] if found and not found[-1][1] else found


def caller_frames(text: str) -> Printed:
    """Parse the frames in a backtrace of `caller`."""
    found = re.findall(r"^(.*):(\d+):in [`'](.*)'$", text, re.M)
    return [(path, int(line), _plain(label)) for path, line, label in found]


def _plain(label: str) -> str:
    return re.sub(_QUALIFIER, "", label)


def without_classes(frames: Labelled) -> Labelled:
    """Return the frames with labels in the form of Ruby before 3.4."""
    return [(_plain(label), path, line) for label, path, line in frames]


def as_caller(stack: ThreadGroup, merges_ensure: bool = False) -> Printed:
    """Convert the frames to the form of `caller`: a method that is written in C has the file and line of its caller. `merges_ensure` (Ruby
    3.4 and newer): a `rescue` or `ensure` has the name of the method that contains it."""
    frames = [(one.function or "", one.file or "", one.line or 0) for one in select_managed(stack)]
    return [(file, line, label) for label, file, line in listed_by_caller(frames, merges_ensure)]


def listed_by_caller(frames: Labelled, merges_ensure: bool) -> Labelled:
    """Convert frames of the form (label, file, line) to the form that `as_caller` returns."""
    found: list[tuple[str, str, int]] = []
    for label, file, line in reversed(frames):
        file, line = (file, line) if file else found[-1][1:]
        if merges_ensure and label.startswith(("rescue in ", "ensure in ")):
            label = found.pop()[0]
        found.append((label, file, line))
    return found[::-1]


def as_profile(frame: tuple[str, int, str]) -> tuple[str, int, str]:
    """Convert a frame to the form of `rb_profile_frames`: the method that contains a block, rescue, ensure or evaluated text, and the file
    of the method."""
    file, line, label = frame
    return str(truth.PROGRAMS / "ruby_busy_frames.rb") if file == "made.rb" else file, line, label.rsplit(" in ", 1)[-1]


def is_sorting(stack: ThreadGroup) -> bool:
    """Return whether a block that Array#sort calls is being executed. The block's frames precede the C function; the caller's follow."""
    frames = list(stack.frames)
    at = next((at for at, one in enumerate(frames) if one.function == "rb_ary_sort_bang"), -1)
    if at < 0:
        return False
    assert [one.function for one in frames[:at] if one.kind] == ["kill", "park", "block in work"], stack
    outer = [one.function for one in frames[at:] if one.kind]
    assert outer[outer.index("work") - 1 :][:2] == ["sort", "work"] and outer[0] in ("sort!", "sort"), stack
    return True


def function_names(target: Target, reader: ManagedFrames) -> set[str]:
    """Return the names of all managed functions that `reader` finds in the stacks of all
    threads."""
    found = set()
    unwinder = Unwinder(target, steps=[reader.step])
    for thread in target.threads():
        registers: list[FrameRegisters] = []
        stack = NativeStack(thread, unwinder.trace_with_registers(thread, registers), registers)
        assert len(stack.trace.frames) <= DEEPEST
        found |= {frame.function for part in reader.segments(stack) for frame in part.frames}
    return found
