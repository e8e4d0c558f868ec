"""findleaks lists the same frames of Java methods as the JVM, for waiting threads and at random stops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import debuggers
import frame_stops
import java_frames
import jvms
import pytest
import truth
from kernel_cores import run_until_crash

import cores
import findleaks
from findleaks.answers.stacks import group_stacks
from findleaks.runtimes.jvm import find_frames
from findleaks.runtimes.jvm.frames.reader import JavaFrames
from findleaks.target.base import Target

QUICK = [(jvms.SYSTEM, "mixed"), ("25.0.2", "interpreted"), ("8", "C2")]
EACH = [
    pytest.param(version, mode, marks=() if (version, mode) in QUICK else pytest.mark.matrix, id=f"{version}-{mode}")
    for version in java_frames.VERSIONS
    for mode in java_frames.MODES
]
STOPS = [
    pytest.param(jvms.SYSTEM, "-Xint", 8, marks=pytest.mark.matrix),
    (jvms.SYSTEM, "-Xmixed", 8),
    *(pytest.param(one, mode, 60, marks=pytest.mark.matrix) for one in java_frames.VERSIONS for mode in ("-Xmixed", "-Xint")),
]


@pytest.mark.parametrize(("version", "mode"), EACH)
def test_frames_of_waiting_threads(version: str, mode: str, tmp_path: Path) -> None:
    calls, *options = java_frames.MODES[mode]
    with java_frames.waiting(version, tmp_path, int(calls), *map(str, options)) as running:
        with findleaks.attach(running.pid) as process:
            answer = group_stacks(process._session, lines=False)
        assert not answer.warnings
        found = {name: group for group in answer.result.stacks for name in group.names}
        printed = dict(java_frames.parse_printed(running.output))
        assert printed.pop("main")[-1][:2] == java_frames.read(found["main"])[-1][:2]
        assert len(printed) >= 11
        printed.pop("Common-Cleaner", None)  # this thread runs once a minute, so its frames may have changed
        assert {name: java_frames.read(found[name]) for name in printed} == printed
        # Methods of Java and functions of C++ are in the correct order: a method runs when its class is initialized.
        kinds = re.sub(r"(.)\1+", r"\1", "".join("j" if one.kind else "n" for one in found["initializer"].frames))
        assert kinds == "njnjn"
        assert all(group.complete for group in answer.result.stacks)


@pytest.mark.parametrize(("version", "mode", "stops"), STOPS)
def test_frames_at_any_stop(version: str, mode: str, stops: int, tmp_path: Path) -> None:
    compared = 0
    with java_frames.busy(version, tmp_path, mode) as program:
        while compared < stops:
            time.sleep(0.02)
            program.stop()
            found = program.stacks()
            stack, tid = next((one, tid) for tid, one in found.items() if f"busy{compared % 2}" in one.names)
            program.resume(tid)
            text = program.read_until("end\n")
            printed = java_frames.parse_traced(text)
            # The JVM lists no frames if it considers them unsafe. Sometimes it lists frames of a wrong stack. In a system call, it receives
            # the signal too late.
            if not printed or not printed[-1][0].startswith("java.lang.Thread.run") or not stack.frames[0].kind:
                continue
            assert stack.complete, stack
            is_compiled = mode != "-Xint"
            assert java_frames.agrees(stack, printed) or (is_compiled and java_frames.includes(stack, printed)), (stack, text)
            compared += 1


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["21.0.4", "25.0.2"])
def test_virtual_thread(version: str, tmp_path: Path) -> None:
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualFrames.java", tmp_path, "--release", "17")
    program = frame_stops.Busy(jvms.command(version, tmp_path, "JavaVirtualFrames"), os.environ, tmp_path / "output")
    try:
        program.read_line(cores.READY)
        with findleaks.attach(program.pid) as process:
            answer = group_stacks(process._session, lines=False)
    finally:
        program.end()
    (stack,) = (one for one in answer.result.stacks if any(frame.function == "JavaVirtualFrames.spin" for frame in one.frames))
    names = [frame.function for frame in stack.frames]
    assert names[:1] == ["JavaVirtualFrames.spin"] and stack.complete
    at = names.index("further frames are in the Java heap")
    assert set(names[1:at]) <= {"JavaVirtualFrames.deep"} and names[at + 1] == "jdk.internal.vm.Continuation.run"


@pytest.mark.matrix
def test_front_ends_and_cores(tmp_path: Path) -> None:
    with java_frames.waiting(jvms.SYSTEM, tmp_path, 100, "-Xmx32m") as running:
        core, printed = str(running.gcore()), java_frames.parse_printed(running.output)
        java = str(jvms.get(jvms.SYSTEM) / "bin" / "java")
        shown = [
            debuggers.findleaks("stacks", "--no-lines", "--json", core),
            debuggers.gdb(["leaks stacks --no-lines --json"], java, core),
            debuggers.lldb(["leaks stacks --no-lines --json"], java, "-c", core),
            debuggers.findleaks("stacks", "--no-lines", "--json", "--pid", str(running.pid)),
        ]
        text = debuggers.findleaks("stacks", "-c", "locked", "--no-lines", core)
    answers = [{name: one for one in json.loads(debuggers.objects(each)[0])["stacks"] for name in one["names"] if name} for each in shown]
    for name in (one for one, frames in printed.items() if frames and one != "main"):
        frames = [
            [(one["function"], one.get("file") or "", one.get("line") or 0) for one in answer[name]["frames"] if one.get("kind") == "Java"]
            for answer in answers
        ]
        assert frames[0] and all(one == frames[0] for one in frames), name
    assert "(blocked)" in text and re.search(r"JavaFrames\.locked at JavaFrames\.java:\d+  \[Java\]\n", text)
    assert re.search(r"java\.lang\.Thread\.run at Thread\.java:\d+  \[Java\]\n +call_stub\n +JavaCalls::call_helper", text)


def test_crashes(tmp_path: Path) -> None:
    """The JVM handles a fault and ends with abort(). `verdict` names the fault and the Java method."""
    jvms.compile_java(truth.PROGRAMS / "JavaCrash.java", tmp_path, "--release", "8")
    headers, library = jvms.jdk() / "include", tmp_path / "java_crash.so"
    command = ["gcc", *jvms.FLAGS, "-I", headers, "-I", headers / "linux", "-o", library, truth.PROGRAMS / "java_crash.c"]
    subprocess.run([str(word) for word in command], check=True)
    options = ["-Xmx32m", "-XX:+CrashOnOutOfMemoryError"]
    core, _ = run_until_crash(jvms.command(jvms.SYSTEM, tmp_path, "JavaCrash", str(library), options=options), tmp_path / "fault")
    (found, *_) = json.loads(debuggers.run_cli("verdict", "--json", str(core)).stdout)["findings"]
    assert "SIGSEGV in look (java_crash.so), called by Java function JavaCrash.peek: it accessed address 0x10" in found["text"]
    assert found["evidence"]["managed_frame"]["function"] == "JavaCrash.peek"
    core, _ = run_until_crash(jvms.command(jvms.SYSTEM, tmp_path, "JavaCrash", "memory", options=options), tmp_path / "memory")
    (found, *_) = json.loads(debuggers.run_cli("verdict", "--json", str(core)).stdout)["findings"]
    assert re.search(
        r"Java function JavaCrash\.main at JavaCrash\.java:1\d: fatal error: OutOfMemory encountered: Java heap", found["text"]
    )


def test_damaged_frames(tmp_path: Path) -> None:
    """findleaks reads the frames of a damaged process without an error. The names of methods are complete names of the program."""
    with java_frames.waiting(jvms.SYSTEM, tmp_path, 100, "-Xmx32m") as running, findleaks.attach(running.pid) as process:
        target = process._session.target
        whole = frame_stops.function_names(target, reader_of(target))
        assert len(whole) > 30
        cut = 0
        for seed in range(30):
            reader = reader_of(target)
            memory = frame_stops.DamagedMemory(reader._memory, seed)
            reader._memory = reader._tables.memory = memory
            found = frame_stops.function_names(target, reader)
            assert all(map(str.isprintable, found))
            cut += found != whole
        assert cut > 10


def reader_of(target: Target) -> JavaFrames:
    reader = find_frames(target)
    assert isinstance(reader, JavaFrames)
    return reader


VIRTUAL = [
    ("21.0.4", "mixed", ()),
    *(
        pytest.param(version, mode, options, marks=pytest.mark.matrix)
        for version, mode, options in (
            ("25.0.2", "mixed", ()),
            *((version, mode, ()) for version in ("21.0.4", "25.0.2") for mode in ("interpreted", "compiled", "C2")),
            *((version, "mixed", ("-XX:-UseCompressedOops",)) for version in ("21.0.4", "25.0.2")),
            *(
                (version, "mixed", (f"-XX:+Use{collector}GC",))
                for version in ("21.0.4", "25.0.2")
                for collector in ("Parallel", "Shenandoah", "Z")
            ),
            ("21.0.4", "mixed", ("-XX:+UseZGC", "-XX:+ZGenerational")),
        )
    ),
]


@pytest.mark.parametrize(("version", "mode", "options"), VIRTUAL)
def test_virtual_threads_that_wait(version: str, mode: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Their frames are in the Java heap. They are those that Java lists, live and in a core."""
    count = 400
    jvms.compile_java(truth.PROGRAMS / "JavaVirtualThreads.java", tmp_path, "--release", "17")
    given = ("-Xmx128m", *java_frames.MODES[mode][1:], *options)
    command = jvms.command(version, tmp_path, "JavaVirtualThreads", str(count), "collect", options=[str(word) for word in given])
    with cores.Running(command, tmp_path) as running:
        listed = {int(name): frames for name, frames in java_frames.parse_printed(running.output).items()}
        with findleaks.attach(running.pid) as process:
            live = group_stacks(process._session, lines=False)
        core = running.kernel_core()
    with findleaks.open(str(core)) as process:
        dead = group_stacks(process._session, lines=False)
    assert len(listed) == count
    for answer in (live, dead):
        found = {number: group for group in answer.result.user_stacks for number in group.numbers}
        assert {number: outer(java_frames.read(group)) for number, group in found.items()} == {
            number: outer(frames) for number, frames in listed.items()
        }
        assert {group.state for group in found.values()} == {"parked"}
        assert len(answer.result.user_stacks) == 2
        assert not answer.warnings


def outer(frames: java_frames.Frames) -> java_frames.Frames:
    """Return the frames from LockSupport.park to VirtualThread.run. Java does not list the methods of continuations, and Thread.runWith."""
    frames = [one for one in frames if one[0] != "java.lang.Thread.runWith"]
    names = [name for name, _, _ in frames]
    return frames[names.index("java.util.concurrent.locks.LockSupport.park") : names.index("java.lang.VirtualThread.run") + 1]
