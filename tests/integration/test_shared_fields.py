"""What several fields of a root reach is shown block by block: the clients of a server that has them in a list and in an index."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import truth
from debuggers import gdb, lldb, objects, ran

import cores


def test_clients_in_a_list_and_in_an_index(tmp_path: Path) -> None:
    program = tmp_path / "indexed_clients"
    source = truth.PROGRAMS / "indexed_clients.c"
    subprocess.run(["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)], check=True)
    with cores.Running([str(program)], tmp_path / "run") as running:
        client, replies = running.output.split()[:2]
        core = str(running.gcore())
    answer = json.loads(ran("roots", "--json", core, check=True).stdout)
    server = next(row for row in answer["roots"] if row["name"].startswith("server ("))
    (first, *others) = server["shared_children"]
    assert first["address"] == client
    assert first["retained_blocks"] == int(replies) + 1
    # The clients together are no tenth of the root: 39 of a reply each have a row, or none.
    assert all(row["retained_bytes"] < first["retained_bytes"] / 4 for row in others)
    assert server["shared"]["retained_bytes"] >= first["retained_bytes"]
    text = ran("roots", core, check=True).stdout
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "reached through several fields" in line)
    assert client in lines[at + 1]
    assert f"linked list, {replies} nodes" in " ".join("".join(lines[at + 2 : at + 5]).split())
    for other in (gdb(["leaks roots --json"], str(program), core), lldb(["leaks roots --json"], str(program), "-c", core)):
        assert json.loads(objects(other)[0])["roots"] == answer["roots"]
