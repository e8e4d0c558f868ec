"""Java programs that wait or run in methods of every kind, and the frames that the JVM itself lists for them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import frame_stops
import jvms
import truth

import cores
from findleaks.results.stacks import ThreadGroup
from findleaks.runtimes.jvm.java_classes import java_name

VERSIONS = ("8", "11", jvms.SYSTEM, "21.0.4", "25.0.2")
MODES = {
    "interpreted": (100, "-Xint"),
    "mixed": (30_000, "-Xbatch"),
    "compiled": (3000, "-Xcomp"),
    "C2": (30_000, "-XX:-TieredCompilation"),
}
"""For each way in which the JVM executes methods: the number of calls after which it uses this way, and JVM options."""

Frames = list[tuple[str, str, int]]
"""Method, file ("": unknown) and line (0: unknown) of each frame, innermost first."""

_HIDDEN = re.compile(r"\$\$Lambda|LambdaForm|^java\.lang\.invoke\.|\.DirectMethodHandleAccessor\.invokeImpl$")
"""Methods that Java omits in stack traces, or that an agent cannot name."""

_INLINED = 15  # maximum number of methods that a JIT compiler inlines into each other


@contextmanager
def waiting(version: str, folder: Path, calls: int, *options: str) -> Iterator[cores.Running]:
    """Start the program whose threads wait after this number of calls."""
    jvms.compile_java(truth.PROGRAMS / "JavaFrames.java", folder, "--release", "8")
    command = jvms.command(version, folder, "JavaFrames", str(calls), options=options)
    with cores.Running(command, folder, stdin=subprocess.PIPE) as running:
        yield running


def parse_printed(output: str) -> Mapping[str, Frames]:
    """Return the frames that Thread.getAllStackTraces lists, by thread."""
    found: dict[str, Frames] = {}
    for part in re.split("^thread ", output.removesuffix(cores.READY), flags=re.M)[1:]:
        name, *lines = part.splitlines()
        frames = [line.split(" ") for line in lines]
        found[name] = [(method, "" if file == "null" else file, max(int(line), 0)) for method, file, line in frames]
    return {name: [one for one in frames if not _HIDDEN.search(one[0])] for name, frames in found.items()}


def is_hidden(method: str) -> bool:
    """Return whether a stack trace omits this method, or whether its name differs in each JVM."""
    return bool(_HIDDEN.search(method))


def read(stack: ThreadGroup) -> Frames:
    """Return the frames that findleaks lists."""
    found = [(one.function or "", one.file or "", one.line or 0) for one in stack.frames if one.kind == "Java"]
    return [one for one in found if not _HIDDEN.search(one[0])]


Locks = list[tuple[int, str]]
"""For each lock, the index of its Java frame (0: innermost), and its line in the output of `jcmd
Thread.print`: "locked <0x…> (a java.lang.Object)"."""


def printed_locks(version: str, pid: int) -> Mapping[int, Locks]:
    """Return the locks of each thread that the JVM prints, by the kernel's thread ID."""
    command = [jvms.jcmd(version), str(pid), "Thread.print", "-l"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=cores.PATIENCE).stdout
    found: dict[int, Locks] = {}
    # The JVM prints deadlocked threads a second time, without a thread ID. A line about a scalar
    # replaced object has no line break at its end.
    for part in re.split('^"', text.replace(")\tat ", ")\n\tat "), flags=re.M)[1:]:
        number, (_, *lines), frame, made = re.search(r" nid=(\w+) ", part), part.split("\n\n")[0].splitlines(), -1, []
        for line in map(str.strip, lines):
            frame += line.startswith("at ")
            if line.startswith("- "):
                made.append((frame, re.sub(" +<", " <", line[2:])))
        if number is not None:
            found.setdefault(int(number[1], 0), made)
    return found


def read_locks(stack: ThreadGroup, tid: int) -> Locks:
    """Return the locks that findleaks lists for a thread, in the form of `printed_locks`."""
    frames = [at for at, one in enumerate(stack.frames) if one.kind == "Java"]
    return [
        (
            frames.index(one.frame),
            f"{one.kind} <{one.address:#018x}> (a {one.type})" if one.address else f"{one.kind} <owner is scalar replaced>",
        )
        for one in stack.locks
        if one.thread == tid
    ]


def same_lock(read: str, printed: str) -> bool:
    """Return whether the lock that findleaks read is the lock that the JVM printed. The JVM cannot print the object for which a compiled
    method waits. JDK 11 prints "waiting to re-lock in wait()" also for the caller of Object.wait()."""
    if printed == "waiting on <no object reference available>":
        return read.startswith("waiting on <0x")
    again = printed.replace("waiting to re-lock in wait()", "locked")
    return read in (printed, again, printed.rpartition(" (a ")[0])


@contextmanager
def busy(version: str, folder: Path, *options: str) -> Iterator[frame_stops.Busy]:
    """Start the program whose threads never wait. Its agent prints the frames of a thread that gets a signal."""
    jvms.compile_java(truth.PROGRAMS / "JavaBusyFrames.java", folder, "--release", "8")
    headers, agent = jvms.jdk() / "include", folder / "agent.so"
    command = ["gcc", *jvms.FLAGS, "-I", headers, "-I", headers / "linux", "-o", agent, truth.PROGRAMS / "java_call_trace.c"]
    subprocess.run([str(word) for word in command], check=True)
    java = jvms.command(version, folder, "JavaBusyFrames", options=[f"-agentpath:{agent}", *options])
    program = frame_stops.Busy(java, os.environ, folder / "output")
    try:
        program.read_line(cores.READY)
        yield program
    finally:
        program.end()


def parse_traced(text: str) -> Frames:
    """Return the frames that the agent printed. It prints no files."""
    lines = [line.split(" ") for line in text.splitlines()[:-1] if not line.startswith("none")]
    found = [(f"{java_name(holder[1:-1].replace('.', '+'))}.{method}", "", int(line)) for holder, method, line in lines]
    return [one for one in found if not _HIDDEN.search(one[0])]


def agrees(stack: ThreadGroup, theirs: Sequence[tuple[str, str, int]]) -> bool:
    """Return whether the frames of a thread that executes Java code are those that the JVM lists.

    The JVM guesses which methods are inlined in the innermost compiled method, and for the innermost interpreted method it lists the line
    of the last call. It omits a method that is just being entered.
    """
    names = [(method, line) for method, _, line in read(stack)]
    listed = [(method, line) for method, _, line in theirs]
    top = stack.frames[0].function or ""
    rest = names if _HIDDEN.search(top) else names[1:]
    if listed == rest:
        return True
    outer = listed[-len(rest) :]
    inner = listed[: -len(rest)]
    known = bool(stack.frames[0].line)
    return outer == rest and (rest is names or top == inner[-1][0]) and (len(inner) == 1 or not known)


def includes(stack: ThreadGroup, theirs: Sequence[tuple[str, str, int]]) -> bool:
    """Return whether the stack contains the outer frames that the JVM lists, in the same order.

    If compiled code has removed a part of its frame or has just returned from a call, the JVM omits frames of callers, and guesses which
    methods are inlined in the innermost one.
    """
    names = iter([(method, line) for method, _, line in read(stack)])
    return all((method, line) in names for method, _, line in theirs[_INLINED:])
