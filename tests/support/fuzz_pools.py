"""Make cores for fuzz_corpus.py: programs with APR pools, GObjects, obstacks and Boost's pools, nginx and PostgreSQL, and PHP."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import building
import libraries_cpp
import real
import rubies
import truth

import cores


def _core(folder: Path, *command: object) -> Path:
    with cores.Running([str(word) for word in command], folder) as running:
        return running.kernel_core()


def _php_released(folder: Path) -> Path:
    """PHP's frames, generators, fibers and collections: see tests/integration/test_php.py."""
    return _core(folder, real.executable("php"), "-n", truth.PROGRAMS / "released.php", 8)


def _with_library(source: str, library: str, *words: object) -> Callable[[Path], Path]:
    """Return a function that makes a core of a program in tests/programs. `library`: its pkg-config name. `words`: the arguments."""

    def make(folder: Path) -> Path:
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", library], check=True, capture_output=True, text=True).stdout.split()
        return _core(folder, building.compile_program(folder.parent, source, "-O1", *flags), *words)

    return make


def _nginx(folder: Path) -> Path:
    """nginx with requests whose bodies are not complete yet: see tests/integration/test_nginx_pools.py."""

    def command(place: Path, port: int) -> list[str]:
        paths = " ".join(f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        server = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:9; }} }}"
        http = f"access_log off; {paths} limit_req_zone $uri zone=a:1m rate=9r/s; {server}"
        head = f"daemon off; master_process off; pid {place}/pid; error_log {place}/log; events {{ }}"
        place.joinpath("nginx.conf").write_text(f"{head} http {{ {http} }}")
        return [real.executable("nginx"), "-c", str(place / "nginx.conf"), "-e", str(place / "log")]

    idle = real.Idle(real.Program("nginx", command, real.GET, says_ready=False), folder)
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(idle)
        for _ in range(20):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\nExpect: 100-continue\r\n\r\n")
            assert b"100 Continue" in connection.recv(4096)
        return server.kernel_core()


def _postgresql(folder: Path) -> Path:
    """A session of PostgreSQL, without its shared memory: see tests/integration/test_postgresql.py."""
    with rubies.postgres(folder) as port:
        command = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qAt"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
            assert session.stdin is not None and session.stdout is not None
            session.stdin.write("create table a(id int primary key);\nselect count(*) from a;\nselect pg_backend_pid();\n")
            session.stdin.flush()
            pid = [session.stdout.readline() for _ in range(2)][1].strip()
            Path(f"/proc/{pid}/coredump_filter").write_text("0x11")  # private memory
            made = folder / "core"
            dump = ["gdb", "-batch", "-p", pid, "-ex", f"gcore {made}"]
            subprocess.run(dump, check=True, capture_output=True)
            session.stdin.close()
    return made


def _boost(folder: Path) -> Path:
    options = "-std=c++17", "-O1", libraries_cpp.boost_headers("1.74"), "-pthread"
    return _core(folder, building.compile_program(folder.parent, "boost_pools.cpp", *options))


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "php-released": _php_released,
    "apr": _with_library("apr_pools.c", "apr-1"),
    "gobject": _with_library("gobject_program.c", "gobject-2.0", 30, 20, 10, 20, 20, 20, 10, 40),
    "boost": _boost,
    "nginx": _nginx,
    "obstacks": lambda folder: _core(folder, building.compile_program(folder.parent, "obstacks.c", "-O1")),
    "postgresql": _postgresql,
}
"""See fuzz_corpus.MAKERS."""
