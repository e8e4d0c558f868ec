"""Memory that is reachable from several fields of a root, or from several roots, is listed by block, with declared types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import truth
from debuggers import gdb, lldb, objects, run_cli

import cores


def test_clients_in_a_list_and_in_an_index(tmp_path: Path) -> None:
    program = tmp_path / "indexed_clients"
    source = truth.PROGRAMS / "indexed_clients.c"
    subprocess.run(["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)], check=True)
    with cores.Running([str(program)], tmp_path / "run") as running:
        client, replies = running.output.split()[:2]
        core = str(running.gcore())
    answer = json.loads(run_cli("roots", "--json", core, check=True).stdout)
    server = next(row for row in answer["roots"] if row["name"].startswith("server ("))
    (first, *others) = server["shared_children"]
    assert first["address"] == client
    assert first["name"] == f"struct client at {client}"
    assert first["retained_blocks"] == int(replies) + 1
    # All clients together are less than a tenth of the root. The 39 clients with one reply each may or may not have a row.
    assert all(row["retained_bytes"] < first["retained_bytes"] / 4 for row in others)
    assert server["shared"]["retained_bytes"] >= first["retained_bytes"]
    text = run_cli("roots", core, check=True).stdout
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "reached through several fields" in line)
    assert client in lines[at + 1]
    assert f"linked list, {replies} nodes" in " ".join("".join(lines[at + 2 : at + 5]).split())
    for other in (gdb(["leaks roots --json"], str(program), core), lldb(["leaks roots --json"], str(program), "-c", core)):
        assert json.loads(objects(other)[0])["roots"] == answer["roots"]


def test_growth_of_what_several_roots_or_fields_reach(tmp_path: Path) -> None:
    program = tmp_path / "shared_sessions"
    source = truth.PROGRAMS / "shared_sessions.c"
    subprocess.run(["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)], check=True)
    snapshots = [str(tmp_path / name) for name in ("before", "after")]
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None and running.stdout is not None
        counts = []
        for snapshot in snapshots:
            counts.append(int(running.stdout.readline()))
            assert running.stdout.readline() == "ready\n"
            assert run_cli("snapshot", "-o", snapshot, "--pid", str(running.pid), check=True).returncode == 0
            if snapshot == snapshots[0]:
                print(file=running.stdin, flush=True)
        roots = json.loads(run_cli("roots", "--json", "--pid", str(running.pid), check=True).stdout)
        running.kill()
    both = {"by_number and by_time (shared_sessions, data)", "by_time and by_number (shared_sessions, data)"}
    (joint,) = (one for one in roots["roots"] if one["name"] in both)
    (shared,) = joint["shared_children"]
    assert shared["name"] == f"{counts[1]:,} of struct session"
    assert shared["retained_blocks"] == 2 * counts[1]
    rows = json.loads(run_cli("diff", "--json", *snapshots, check=True).stdout)["grown"]
    # A row is either the field, or the root with the field that explains its growth.
    every = [one for row in rows for one in (row, *row["inside"]) if one["what"] == "field" and "session" in one["name"]]
    grown = [(one["name"], one["counts"], one["delta"] > 1_900_000) for one in every]
    assert grown == 2 * [("struct session (reached through several fields)", [2 * counts[0], 2 * counts[1]], True)]
