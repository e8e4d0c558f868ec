"""nginx's pools by owner: one for each connection and request, with the sizes of its configuration, and its shared zones."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from debuggers import run_json
from real import GET, Idle, Program, executable

IDLE, POSTED, BODY = 40, 160, 64 << 10

CONFIGURATION = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_timeout 600; client_body_timeout 600; client_body_buffer_size 64k;
    connection_pool_size 1024; request_pool_size 8192;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    limit_req_zone $binary_remote_addr zone=requests:2m rate=1000000r/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ limit_req zone=requests burst=10000 nodelay; return 200 "hello"; }}
        location /upload {{ proxy_pass http://127.0.0.1:9; }}
    }}
}}
"""


def command(folder: Path, port: int) -> Sequence[str]:
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port))
    return [executable("nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    """Start a server with idle connections, and with requests whose bodies are incomplete."""
    with ExitStack() as opened:
        idle = opened.enter_context(Idle(Program("nginx", command, GET, says_ready=False), tmp_path_factory.mktemp("nginx")))
        for number in range(IDLE + POSTED):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", idle.port)))
            if number < IDLE:
                connection.sendall(GET.replace(b"Connection: close\r\n", b""))
                assert b"hello" in connection.recv(4096)
            else:
                connection.sendall(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
                assert b"100 Continue" in connection.recv(4096)
        yield idle


@pytest.fixture(params=["live", "core"])
def where(request: pytest.FixtureRequest, server: Idle) -> list[str]:
    return ["--pid", str(server.pid)] if request.param == "live" else [str(server.gcore())]


def test_pools_by_owner(where: list[str]) -> None:
    (one,) = run_json("runtime", *where)["runtimes"]
    types = {row["name"]: row for row in one["types"]}
    connections, requests = types["pool of connection"], types["pool of HTTP request"]
    assert (connections["objects"], requests["objects"], types["pool of cycle"]["objects"]) == (IDLE + POSTED, POSTED, 1)
    assert connections["bytes"] >= 1024 * (IDLE + POSTED)
    own = requests["own"]
    assert own["blocks"] >= POSTED and own["large"] >= POSTED  # the buffer of a body is a large request
    assert (BODY + 8192) * POSTED <= requests["bytes"] < (BODY + 8192) * POSTED * 1.1
    zones = {part["name"]: part["bytes"] for part in one["parts"]}
    assert 1.9 * (1 << 20) < zones["shared zone requests"] <= 2 << 20
    (finding,) = [one for one in run_json("verdict", *where)["findings"] if one["finding"] == "nginx-pools"]
    assert f"{POSTED} nginx pools of HTTP requests have" in finding["text"]
    assert "POST /upload HTTP/1.1" in finding["cause"]
