"""The types of objects in nginx's pools. A module of nginx prints some objects with their types, and then stops the process."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import commandline
import nginxes
import pytest
from debuggers import run_cli
from real import GET, Idle, Program

import cores

pytestmark = pytest.mark.matrix

CONNECTIONS, SERVERS = 60, 20

CONFIGURATION = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 300; }}
http {{
    access_log {folder}/access.log; keepalive_timeout 600; client_header_timeout 600; client_body_timeout 600; client_body_buffer_size 64k;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream silent {{ server 127.0.0.1:{silent}; server 127.0.0.1:9 backup; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ root {folder}; error_page 404 /static/404; add_header X-Host $host; }}
        location /silent {{ proxy_pass http://silent; proxy_read_timeout 600; }}
        location /objects {{ print_objects {folder}/objects; }}
    }}
    {servers}
}}
"""
SERVER = """server {{ listen 127.0.0.1:{port}; server_name s{number}.example *.s{number}.example;
        location /a{number} {{ proxy_pass http://silent; }} location = /b {{ root /tmp; index index.html; }} }}"""


def request(line: str, length: int = 0) -> bytes:
    return f"{line} HTTP/1.1\r\nHost: a\r\nX-Other: a\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    """Yield a stopped nginx that has printed its objects. A third of its requests are answered, a third wait for the server behind nginx,
    and a third are incomplete. Former connections left stale pointers."""
    with ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS))

        def command(folder: Path, port: int) -> Sequence[str]:
            servers = "\n".join(SERVER.format(port=port, number=number) for number in range(SERVERS))
            places = {"folder": folder, "port": port, "silent": silent.getsockname()[1], "servers": servers}
            (folder / "nginx.conf").write_text(CONFIGURATION.format(**places))
            return [str(nginxes.with_debug_info()), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log"), "-p", str(folder)]

        idle = opened.enter_context(Idle(Program("nginx", command, GET, says_ready=False), tmp_path_factory.mktemp("nginx")))
        for number in range(3 * CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", idle.port))
            if number % 3 == 0:
                connection.sendall(request("GET /static/a"))
                assert connection.recv(1)
            else:
                connection.sendall(request("GET /silent") if number % 3 == 1 else request("POST /silent", 100_000) + b"z" * 3_000)
            opened.enter_context(connection) if number > 2 * CONNECTIONS else connection.close()
        last = opened.enter_context(socket.create_connection(("127.0.0.1", idle.port)))
        last.sendall(request("GET /objects"))
        limit = time.monotonic() + cores.PATIENCE
        while cores.states(idle.pid) != {"T"} and time.monotonic() < limit:
            time.sleep(0.05)
        yield idle


def parse(server: Idle) -> dict[int, str]:
    """Return the types of the objects that nginx printed, by address."""
    rows = (line.split(" ", 1) for line in (server.folder / "objects").read_text().splitlines())
    return {int(address, 16): name for address, name in rows}


@pytest.fixture(params=["live", "core"])
def where(request: pytest.FixtureRequest, server: Idle) -> list[str]:
    return ["--pid", str(server.pid)] if request.param == "live" else [str(server.gcore())]


def test_objects_in_pools(where: list[str], server: Idle) -> None:
    """findleaks says the types of objects that nginx prints, from the pointers to them and from its hint file. None has a wrong type.
    nginx keeps pointers to the memory of a pool that it freed (ngx_http_core_loc_conf_t.locations). Objects that are at these addresses now
    have no type."""
    truth = parse(server)
    kinds = Counter(re.sub(r"\[\d+\]$", "[]", name) for name in truth.values())
    assert kinds["struct ngx_http_request_s"] > 30 and kinds["struct ngx_http_upstream_s"] > 10 and kinds["struct ngx_table_elt_s[]"] > 30
    assert kinds["struct ngx_http_location_tree_node_s"] == 2 * SERVERS + 3 and kinds["ngx_http_core_srv_conf_t"] == SERVERS + 1
    answers = json.loads(run_cli("whatis", "--json", *map(hex, truth), *where).stdout)["answers"]
    verdicts = Counter[str]()
    wrong = []
    for one in answers:
        address = int(one["address"], 16)
        said = one.get("member") or ""
        is_right = said == truth[address] or said == truth[address].replace("struct ngx_table_elt_s", "ngx_table_elt_t")
        verdicts["right" if is_right else "wrong" if said else "none"] += 1
        wrong += [f"{address:#x}: {truth[address]}, said {said}"] if said and not is_right else []
    assert not wrong, (wrong[:12], verdicts)
    assert verdicts["right"] >= 0.98 * len(truth) and len(truth) >= 200, verdicts


def test_names_of_places(where: list[str], server: Idle) -> None:
    """`blocks` gives types to the blocks that objects of pools refer to, `path` names the members of objects."""
    rows = [json.loads(line) for line in run_cli("blocks", "--json", "--limit", "0", *where).stdout.splitlines()]
    (connections,) = [row for row in rows if str(row.get("type")).startswith("struct ngx_connection_s[")]
    assert (connections["type_from"], connections["type_sure"]) == ("debug-info", True)
    path = run_cli("path", connections["address"], *where).stdout
    assert "ngx_cycle_s.connections" in path or "ngx_connection_s[" in path, path
    request = next(address for address, name in parse(server).items() if name == "struct ngx_http_request_s")
    members = json.loads(run_cli("whatis", "--json", hex(request), *where).stdout)["answers"][0]["members"]
    assert any(one["name"] == "signature" and one["value"] == "1,347,703,880" for one in members), members
    done = commandline.run(["blocks", "--json", "--no-debug-types", *where], dict(os.environ))
    assert "ngx_connection_s" not in done.stdout
