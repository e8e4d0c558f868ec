"""debuginfod: Debian's server with a local folder, and servers that are dead, silent, slow, or send wrong data."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import debugservers
import pytest
from debuggers import PATIENCE, environment, findleaks, gdb, gdb_terminal, lldb, lldb_terminal, objects
from descriptors import open_descriptors
from inlined import PROGRAM, Stopped, build_and_stop, build_id, check, frames, split
from real import free_port

from findleaks.debuginfo import debuginfod
from findleaks.debuginfo.debuginfod import Client

ID = "5e0ba98d" * 5
WORDS = ["stacks", "--json"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Build a program whose debug file is only on a server. The stripped program is at the path that the process mapped."""
    folder = tmp_path_factory.mktemp("built")
    one = build_and_stop(folder, "g++", "-gdwarf-5")
    (folder / "apart").mkdir()
    stripped, debug = split(one.program, folder / "apart")
    (folder / "served").mkdir()
    debug.rename(folder / "served" / debug.name)
    stripped.replace(one.program)
    return one


def variables(cache: Path, *urls: str, **more: str) -> dict[str, str]:
    """Return the environment with these servers and this cache folder."""
    known = {"no_proxy": "127.0.0.1", "XDG_CACHE_HOME": str(cache), "HOME": str(cache), "DEBUGINFOD_CACHE_PATH": ""}
    return {**known, "DEBUGINFOD_URLS": " ".join(urls), **more}


def answer(one: Stopped, **more: str) -> dict[str, Any]:
    (line,) = objects(findleaks(*WORDS, str(one.core), **more))
    made: dict[str, Any] = json.loads(line)
    return made


def test_names_come_from_a_server(built: Stopped, tmp_path: Path) -> None:
    """Each front end fetches the debug file. It is stored in the cache of debuginfod's clients, and is used after the server has ended."""
    found, served = build_id(built.program), built.program.parent / "served"
    (stack,) = answer(built)["stacks"]
    assert not any("line" in frame for frame in stack["frames"] if frame["module"] == PROGRAM)
    with debugservers.debuginfod(served, found) as url:
        known = variables(tmp_path / "cache", url)
        first = answer(built, **known)
        check(frames(first), built)
        assert first["warnings"] == []
        kept = tmp_path / "cache" / "debuginfod_client" / found / "debuginfo"
        assert kept.read_bytes() == next(served.iterdir()).read_bytes()
        assert sorted(path.name for path in kept.parent.iterdir()) == ["debuginfo"]
        gone = next((tmp_path / "cache" / "debuginfod_client").glob("*/debuginfo"))
        assert gone.stat().st_mode & 0o777 == 0o400 or not gone.stat().st_size
    known["DEBUGINFOD_TIMEOUT"] = "100"
    again = answer(built, **known)
    assert again["stacks"] == first["stacks"] and again["warnings"] == []
    for output in (
        gdb(["leaks " + " ".join(WORDS)], "-iex", "set debuginfod enabled off", str(built.program), str(built.core), **known),
        lldb(["leaks " + " ".join(WORDS)], str(built.program), "-c", str(built.core), **known),
    ):
        (line,) = objects(output)
        assert json.loads(line)["stacks"] == first["stacks"]


def test_an_unknown_id_is_asked_for_once(tmp_path: Path) -> None:
    """If a server does not have a build-id, an empty file in the cache records this, as debuginfod's clients do. It is not an error."""
    known = variables(tmp_path / "cache", "")
    (tmp_path / "served").mkdir()
    other = tmp_path / "served" / "other"
    subprocess.run(["gcc", "-g", "-x", "c", "-o", other, "-"], input=b"int main(void) { return 0; }", check=True)
    with debugservers.debuginfod(tmp_path / "served", build_id(other)) as url:
        known["DEBUGINFOD_URLS"] = url
        client = Client(known)
        assert not client.debug_file(ID, "program", never, quiet)
        assert client.warnings == []
    noted = tmp_path / "cache" / "debuginfod_client" / ID / "debuginfo"
    assert noted.stat().st_size == 0
    again = Client(known)  # the server has ended, and no request is sent
    assert not again.debug_file(ID, "program", never, quiet)
    assert again.warnings == []
    os.utime(noted, (time.time() - 700,) * 2)
    assert not again.debug_file(ID, "program", never, quiet)
    assert "cannot be reached" in again.warnings[0]
    assert not noted.exists()


def never(path: str) -> bool:
    return False


def quiet(part: float) -> None:
    pass


FAILURES: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "silent": (debugservers.silent, "did not answer in 1 s (DEBUGINFOD_TIMEOUT sets the limit)"),
    "garbage": (debugservers.garbage, "sent another file than the requested one"),
    "no http": (debugservers.no_http, "failed: BadStatusLine"),
    "endless": (debugservers.endless, "sent more than the 3,000,000 bytes allowed (DEBUGINFOD_MAXSIZE, free space)"),
    "huge": (debugservers.huge, "has a file of 9,000,000,000,000,000 bytes, more than the 3,000,000 allowed"),
    "dripping": (debugservers.dripping, "bytes in 3 s (DEBUGINFOD_TIMEOUT sets the limit)"),
    "cut off": (debugservers.cut_off, "sent 4 bytes of 1,000,000"),
    "failing": (debugservers.failing, "answered 503 Service Unavailable"),
    "circular": (debugservers.circular, "answered 302"),
}
SLOW = {"silent": "1", "dripping": "3"}
"""Timeouts in seconds, by kind of server. "silent" never answers. "dripping" sends a few bytes, of which the first must arrive in time even
on a busy machine. All other servers have a long timeout, because they always answer."""


@pytest.mark.parametrize("how", FAILURES)
def test_failing_server_is_not_asked_again(how: str, tmp_path: Path) -> None:
    """The failure is reported once, the server gets no further request, and the cache has no incomplete file."""
    misbehave, why = FAILURES[how]
    with debugservers.Misbehaving(misbehave) as server:
        patience = SLOW.get(how, str(PATIENCE))
        client = Client(variables(tmp_path, server.url, DEBUGINFOD_TIMEOUT=patience, DEBUGINFOD_MAXSIZE="3000000"))
        assert not client.debug_file(ID, "libthing.so", never, quiet)
        before = server.connections
        assert not client.debug_file(ID[::-1], "libother.so", never, quiet)
        assert server.connections == before
    (warning,) = client.warnings
    assert warning.startswith(f"debuginfod: {server.url} ") and why in warning
    assert warning.endswith(": it is not used again, and libthing.so may lack names and lines")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_file_stays_open_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started (limit of processes), no file stays open, and the server is not used."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(debuginfod, "start_new_thread", refuse)
    client = Client(variables(tmp_path, "http://127.0.0.1:9"))
    before = open_descriptors()
    assert not client.debug_file(ID, "libthing.so", never, quiet)
    assert open_descriptors() <= before
    assert "no thread can be started" in client.warnings[0]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_next_server_is_asked(tmp_path: Path) -> None:
    """If the first server is dead, the next one is used."""
    dead = f"http://127.0.0.1:{free_port()}"
    with debugservers.Misbehaving(debugservers.garbage) as server:
        client = Client(variables(tmp_path, dead, server.url))
        seen: list[bytes] = []

        def accept(path: str) -> bool:
            seen.append(Path(path).read_bytes())
            return True

        assert client.debug_file(ID, "program", accept, quiet)
    assert seen == [b"<html>Welcome</html>"]
    (warning,) = client.warnings
    assert warning.startswith(f"debuginfod: {dead} cannot be reached: Connection refused: it is not used again")


def test_command_continues_without_a_dead_server(built: Stopped, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    found, without = answer(built, **variables(tmp_path, dead)), answer(built)
    assert found["stacks"] == without["stacks"]
    (warning,) = found["warnings"]
    assert warning.startswith(f"debuginfod: {dead} cannot be reached")


def test_no_server_is_used_without_the_environment_variable(built: Stopped, tmp_path: Path) -> None:
    with debugservers.Misbehaving(debugservers.garbage) as server:
        for more in ({}, {"DEBUGINFOD_URLS": ""}, {"DEBUGINFOD_URLS": server.url}):
            findleaks("stacks", "--no-lines", str(built.core), **{**variables(tmp_path), **more})
        findleaks("find", "--no-debug-types", str(built.core), **variables(tmp_path, server.url))
        assert server.connections == 0


def test_ctrl_c_on_the_command_line(built: Stopped, tmp_path: Path) -> None:
    with debugservers.Misbehaving(debugservers.silent) as server:
        known = environment(**variables(tmp_path, server.url, DEBUGINFOD_TIMEOUT="1000"))
        words = [sys.executable, "-m", "findleaks", "stacks", str(built.core)]
        with subprocess.Popen(words, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert server.asked.acquire(timeout=PATIENCE)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "findleaks: interrupted"


@pytest.mark.parametrize("debugger", ["gdb", "lldb"])
def test_ctrl_c_in_a_debugger(debugger: str, built: Stopped, tmp_path: Path) -> None:
    """Debuggers may use debuginfod themselves, so the test disables that."""
    terminal = {"gdb": gdb_terminal, "lldb": lldb_terminal}[debugger]
    words = {
        "gdb": ["-iex", "set debuginfod enabled off", str(built.program), str(built.core)],
        "lldb": ["-O", "settings set symbols.enable-external-lookup false", str(built.program), "-c", str(built.core)],
    }[debugger]
    with debugservers.Misbehaving(debugservers.silent) as server:
        known = variables(tmp_path, server.url, DEBUGINFOD_TIMEOUT="1000")
        with terminal(*words, **known) as session:
            start = len(session.text)
            session.press("leaks stacks\n")
            assert server.asked.acquire(timeout=PATIENCE)
            session.press("\x03")
            output = session.until("leaks: interrupted", start)
            assert "Traceback" not in output
            session.run("leaks stacks --no-lines", "1 thread: ")
