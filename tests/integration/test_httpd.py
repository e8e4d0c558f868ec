"""A module of Apache httpd that keeps data of each request in a pool: `verdict` names the pool and the module's variable."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpds
import pytest
from debuggers import gdb, lldb, objects, run_cli
from real import GET, Idle, Program

pytestmark = pytest.mark.matrix

REQUESTS, BYTES = 4000, 4000


def serve(folder: Path, opened: ExitStack, path: str, *options: str) -> int:
    """Start httpd, send REQUESTS requests for `path` in one connection, which remains open, and return the pid of the worker."""
    workers: list[int] = []
    # This callback runs after httpd has ended, because httpd would start new workers.
    opened.callback(lambda: [os.kill(worker, signal.SIGKILL) for worker in workers])
    program = Program("httpd", lambda folder, port: httpds.command(folder, port, *options), GET, says_ready=False)
    idle = opened.enter_context(Idle(program, folder))
    client = opened.enter_context(closing(http.client.HTTPConnection("127.0.0.1", idle.port)))
    for _ in range(REQUESTS):
        client.request("GET", path)
        answer = client.getresponse().read()
    assert int(answer) > REQUESTS  # `Idle` also sent a request
    workers.append(httpds.worker(idle.pid))
    return workers[0]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with ExitStack() as opened:
        yield serve(tmp_path_factory.mktemp("httpd"), opened, "/search")


@pytest.fixture(scope="module")
def core(worker: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("core") / "worker.core"
    assert run_cli("snapshot", str(made.with_suffix("")), "--weight", "core", "--pid", str(worker)).returncode == 0
    return made


def finding(output: str) -> dict[str, Any]:
    """Return the finding about APR's pools in the output of `verdict --json`."""
    found: list[dict[str, Any]] = json.loads(objects(output)[0])["findings"]
    (one,) = [one for one in found if one["finding"] == "apr-pool"]
    return one


@pytest.mark.parametrize("where", ["live", "core"])
def test_pool_of_the_server(where: str, worker: int, core: Path) -> None:
    found = finding(run_cli("verdict", "--json", *(["--pid", str(worker)] if where == "live" else [str(core)])).stdout)
    assert "the APR pool apr_global_pool > process > pconf and" in found["text"]
    assert "is reachable from sessions (mod_sessions.so, data), and not from other variables" in found["cause"]
    assert found["evidence"]["variable"] == "sessions (mod_sessions.so, data)"
    assert REQUESTS * BYTES < found["evidence"]["reachable_bytes"] < 1.1 * REQUESTS * BYTES


def test_front_ends(core: Path) -> None:
    wanted = finding(run_cli("verdict", "--json", str(core)).stdout)["evidence"]
    for debugger in (gdb, lldb):
        assert finding(debugger(["leaks verdict --json"], "-c", str(core)))["evidence"] == wanted


def test_a_stripped_module(tmp_path: Path) -> None:
    """If the module has no symbols, `verdict` names the module instead of a variable."""
    with ExitStack() as opened:
        found = finding(run_cli("verdict", "--json", "--pid", str(serve(tmp_path, opened, "/search", "-s"))).stdout)
    assert found["evidence"]["variable"] == "variables of mod_sessions.so"


def test_pool_of_a_connection(tmp_path: Path) -> None:
    """`verdict` names the pool of a connection by the tag that httpd gives it, "transaction"."""
    with ExitStack() as opened:
        found = finding(run_cli("verdict", "--json", "--pid", str(serve(tmp_path, opened, "/connection"))).stdout)
    assert "transaction" in found["text"], found


def test_variable_of_a_pool_below(tmp_path: Path) -> None:
    """If two pools below the pool of a finding have most of the memory, `verdict` names the variable that refers to one of them."""
    with ExitStack() as opened:
        found = finding(run_cli("verdict", "--json", "--pid", str(serve(tmp_path, opened, "/both"))).stdout)
    assert "of pchild is reachable from of_child (mod_sessions.so, data)" in found["cause"], found
    assert REQUESTS * BYTES < found["evidence"]["reachable_bytes"] < 1.1 * REQUESTS * BYTES
