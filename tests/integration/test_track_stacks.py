"""Stacks of `track` beside GDB's own backtraces, of the same calls of the same process, frame by frame."""

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
from beside_gdb import compared
from counts import until
from patched import stubs
from tracking import JEMALLOC, built, by_line, finished, recording, tracked

LIBCS = pytest.param("", 18, id="glibc")
JEMALLOCS = pytest.param(JEMALLOC, 17, id="jemalloc", marks=pytest.mark.matrix)  # where an operator new fails, no exception of another


@pytest.mark.parametrize(("preload", "number"), [LIBCS, JEMALLOCS])
def test_stacks_are_those_of_gdb(preload: str, number: int, tmp_path: Path) -> None:
    """Of a program without symbols and frame pointers: those of all its calls, and so those that are printed."""
    with tracked([str(built(tmp_path, "tracked", "-s", "-fomit-frame-pointer"))], preload) as program:
        program.round()
        working = recording(by_line(program.pid, "--json"), program.pid)
        with compared(program.pid, tmp_path) as calls:
            program.round()
        program.round()
        working.send_signal(signal.SIGINT)
        report = finished(working)
    stacks = {tuple(int(frame["address"], 16) for frame in stack["frames"]) for stack in report["stacks"]}
    assert calls.differing() == []
    assert len(calls) > 1000
    assert len(stacks) == number
    assert stacks == {call.gdb for call in calls}


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """Redis with clients that send it many kinds of commands."""
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
    """All allocations for some seconds, by at least so many stacks, of which each frame's program counter is compared.

    Redis and CPython have call frame information for all their code, and GDB goes by it. In Node it does so in all functions of C++;
    through V8's code, made at run time or built in, it goes by the frame pointers, from the one that call frame information gives of the
    function called from there. Where V8's deoptimizer has taken a frame off the stack and not yet put others in its place, nothing leads
    on: both have to end there."""
    with load(tmp_path) as pid:
        working = recording(by_line(pid, "--json", "--limit", "1"), pid)
        with compared(pid, tmp_path, frame_pointers=load in (node, newest_node)) as calls:
            until(lambda: len(calls) >= 3000 and calls.distinct() >= least, f"3,000 calls by {least} stacks")
        working.send_signal(signal.SIGINT)
        report = finished(working)
        assert stubs(pid) == []
    assert calls.differing() == []
    assert report["recorded"] >= 3000
    assert report["warnings"] == []
