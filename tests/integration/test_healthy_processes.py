"""Idle, healthy processes: `verdict` has no finding, except for one sentence about a heap that is not read. nginx and redis are in
test_verdict.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jvms
import pytest
import real
from idle import wait_until_idle
from rubies import postgres
from verdicts import sorts, verdict

from cores import PATIENCE, Running

NOTHING = {"nothing-lost", "next-to-nothing-lost", "no-blocks"}

GO = 'package main\nimport ("fmt"; "time")\nfunc main() { fmt.Println("ready"); time.Sleep(time.Hour) }\n'
PERL = 'use POSIX; use Storable; use Data::Dumper; use File::Temp; $| = 1; print "ready\\n"; sleep 3600'
ERLANG = 'put(kept, [{N, integer_to_list(N)} || N <- lists:seq(1, 300000)]), io:format("ready~n"), timer:sleep(3600000).'
PHP = '$kept = []; for ($n = 0; $n < 100000; $n++) $kept[] = str_repeat("x", 100) . $n; echo "ready\\n"; sleep(3600);'
LUA = 'io.stdout:setvbuf("no") print("ready") while true do os.execute("sleep 3600") end'
OCAML = 'print_endline "ready"; flush stdout; ignore (Sys.command "sleep 3600")'
SBCL = '(progn (defvar *kept* (make-list 300000 :initial-element 7)) (format t "ready~%") (finish-output) (sleep 3600))'
R = 'kept <- numeric(4e6); cat("ready\\n"); Sys.sleep(3600)'


def _go(folder: Path) -> Sequence[str]:
    (folder / "idle.go").write_text(GO)
    command = [real.executable("go"), "build", "-o", str(folder / "idle"), str(folder / "idle.go")]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0"}, cwd=folder)
    return [str(folder / "idle")]


def _ocaml(folder: Path) -> Sequence[str]:
    (folder / "idle.ml").write_text(OCAML)
    return [real.executable("ocaml"), str(folder / "idle.ml")]


def _java(version: str) -> Callable[[Path], Sequence[str]]:
    def words(folder: Path) -> Sequence[str]:
        (folder / "Idle.java").write_text(real.JAVA)
        jvms.compile_java(folder / "Idle.java", folder)
        return [str(jvms.get(version) / "bin" / "java"), "-Xmx64m", "-cp", str(folder), "Idle"]

    return words


def _script(program: str, *words: str) -> Callable[[Path], Sequence[str]]:
    return lambda folder: [real.executable(program), *words]


INSTALLED = {"go": _go, "perl": _script("perl", "-e", PERL)}
OTHERS = {
    "php": _script("php", "-r", PHP),
    "erlang": _script("erl", "-noinput", "-eval", ERLANG),
    "lua": _script("lua5.4", "-e", LUA),
    "ocaml": _ocaml,
    "sbcl": _script("sbcl", "--noinform", "--eval", SBCL),
    "r": _script("R", "--no-save", "--slave", "-e", R),
    "java 21": _java("21.0.4"),
    "java 25": _java("25.0.2"),
}
UNREAD = {"ocaml", "erlang", "sbcl", "r"}
"""Kinds of processes in which most memory, at least 1 MiB, belongs to a heap that findleaks does not read."""


def check(found: dict[str, Any], kind: str) -> None:
    """Check that the only finding, if any, is the sentence about an unread heap. The PHP script keeps 18 MiB on purpose. In a small Ruby
    process, objects of the interpreter are a large part; stale words decide whether a variable retains them."""
    allowed = [set(), {"unread-memory"}, {"unlisted-heap"}, *([{"held"}] if kind == "php" else [])]
    allowed += [{"held-by-managed-objects"}] if kind == "ruby" else []
    assert set(sorts(found)) - NOTHING in allowed, found["findings"]
    assert sorts(found)[0] == "unread-memory" or kind not in UNREAD
    resident = [one["resident_bytes"] for one in found["findings"]]
    assert sum(resident) <= found["resident"]
    assert [one["try"] for one in found["findings"] if one["try"]] == []


@pytest.mark.parametrize("kind", ["python", "node", "ruby", "java"])
def test_idle_programs(kind: str, tmp_path: Path) -> None:
    with real.Idle(real.PROGRAMS[kind], tmp_path) as idle:
        found = verdict("--pid", str(idle.pid))
    check(found, kind)


@pytest.mark.parametrize("kind", INSTALLED)
def test_idle_scripts(kind: str, tmp_path: Path) -> None:
    idle(INSTALLED[kind], kind, tmp_path)


def idle(words: Callable[[Path], Sequence[str]], kind: str, folder: Path) -> None:
    with Running(words(folder), folder / "run") as run:
        found = verdict("--pid", str(run.pid))
    check(found, kind)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", OTHERS)
def test_other_idle_scripts(kind: str, tmp_path: Path) -> None:
    idle(OTHERS[kind], kind, tmp_path)


def test_idle_postgres(tmp_path: Path) -> None:
    """Neither the postmaster nor its children have a finding."""
    if not Path("/usr/lib/postgresql").is_dir():
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    assert shutil.which("setpriv")
    with postgres(tmp_path) as port:
        for pid in _servers(port):
            wait_until_idle(pid)
            check(verdict("--pid", str(pid)), "postgres")


def _servers(port: int) -> tuple[int, int]:
    """Return the postmaster and its checkpointer. A child has the command line of its parent until it sets its title."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        titles = {int(one): _command_line(int(one)) for one in os.listdir("/proc") if one.isdigit()}
        servers = [pid for pid, words in titles.items() if words[0].endswith(b"/postgres") and str(port).encode() in words]
        children = Path(f"/proc/{servers[0]}/task/{servers[0]}/children").read_text().split() if len(servers) == 1 else []
        checkpointers = [int(pid) for pid in children if titles.get(int(pid), [b""])[0].startswith(b"postgres: checkpointer")]
        if checkpointers:
            return servers[0], checkpointers[0]
        time.sleep(0.05)
    raise RuntimeError(f"the server at port {port} has no checkpointer")


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]
