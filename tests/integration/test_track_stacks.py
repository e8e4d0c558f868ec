"""`track` records the same stacks as GDB's backtraces for the same calls of the same process, frame by frame."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import nodes
import pytest
import real
import truth
from beside_gdb import compare_calls
from counts import until
from patched import stubs
from tracking import JEMALLOC, build, by_line, read_result, recording, start_tracked

LIBCS = pytest.param("", 18, id="glibc")
JEMALLOCS = pytest.param(JEMALLOC, 17, id="jemalloc", marks=pytest.mark.matrix)  # if an operator new fails, it throws no other exception


@pytest.mark.parametrize(("preload", "number"), [LIBCS, JEMALLOCS])
def test_stacks_are_those_of_gdb(preload: str, number: int, tmp_path: Path) -> None:
    """A program without symbols and frame pointers: findleaks records and prints the same stacks as GDB for all its calls."""
    with start_tracked([str(build(tmp_path, "tracked", "-s", "-fomit-frame-pointer"))], preload) as program:
        program.round()
        working = recording(by_line(program.pid, "--json"), program.pid)
        with compare_calls(program.pid, tmp_path) as calls:
            program.round()
        program.round()
        working.send_signal(signal.SIGINT)
        report = read_result(working)
    stacks = {tuple(int(frame["address"], 16) for frame in stack["frames"]) for stack in report["stacks"]}
    assert calls.differing() == []
    assert len(calls) > 1000
    assert len(stacks) == number
    assert stacks == {call.gdb for call in calls}


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """Start Redis with clients that send many kinds of commands."""
    port = real.free_port()
    load = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-l", "-q", "-r", "1000", "-n", "500", "-c", "10", "-d", "100"]
    with subprocess.Popen(real.PROGRAMS["redis"].command(folder, port), stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: answers(port), "redis")
            with subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as clients:
                try:
                    yield server.pid
                    assert (server.poll(), clients.poll()) == (None, None)
                finally:
                    clients.kill()
        finally:
            server.kill()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=180) as wire:
        wire.sendall(b"PING\r\n")
        return wire.recv(16).startswith(b"+PONG")
    return False


def cpython(folder: Path) -> contextmanager[int]:
    return script(["/usr/bin/python3", str(truth.PROGRAMS / "tracked_load.py")])


def node(folder: Path) -> contextmanager[int]:
    return script([real.node20(), str(truth.PROGRAMS / "tracked_load.js")])


def newest_node(folder: Path) -> contextmanager[int]:
    return script([nodes.get(nodes.NEWEST), str(truth.PROGRAMS / "tracked_load.js")])


@contextmanager
def script(words: Sequence[str]) -> Iterator[int]:
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process.pid
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.matrix
@pytest.mark.parametrize(("load", "least"), [(redis, 20), (cpython, 50), (node, 100), (newest_node, 100)])
def test_stacks_of_servers_under_load(load: Callable[[Path], contextmanager[int]], least: int, tmp_path: Path) -> None:
    """Record all allocations for several seconds, and compare the program counters of each frame. There must be at least a given number
    of stacks.

    Redis and CPython have call frame information for all code, and GDB uses it. In Node, GDB uses it in all functions of C++. Through V8's
    generated or built-in code, GDB follows frame pointers, beginning with that of the frame that V8's code called. While V8's deoptimizer
    has removed a frame and not yet written its replacements, the stack cannot be followed, so both must end there.
    """
    with load(tmp_path) as pid:
        working = recording(by_line(pid, "--json", "--limit", "1"), pid)
        with compare_calls(pid, tmp_path, frame_pointers=load in (node, newest_node)) as calls:
            until(lambda: len(calls) >= 3000 and calls.distinct() >= least, f"3,000 calls by {least} stacks")
        working.send_signal(signal.SIGINT)
        report = read_result(working)
        assert stubs(pid) == []
    assert calls.differing() == []
    assert report["recorded"] >= 3000
    assert report["warnings"] == []
