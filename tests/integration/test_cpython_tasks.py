"""The chains of coroutines that `stacks` lists for asyncio tasks equal the chains that the program itself prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import debuggers
import pytest
import truth
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores

VERSIONS = [one for one in PYTHONS if one != "3.13t"]
"""Objects of free-threaded interpreters have no names."""


def tasks(*where: str) -> dict[int, dict[str, Any]]:
    found = json.loads(debuggers.findleaks("stacks", "--no-lines", "--json", *where))
    assert not [one for one in found["warnings"] if "frames" in one]
    return {number: stack for stack in found["user_stacks"] for number in stack["numbers"]}


@pytest.mark.parametrize("picture", mark_matrix_except(["live", "kernel"], "kernel"))
@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, "3.11"))
def test_chains_of_coroutines(version: str, picture: str, tmp_path: Path) -> None:
    python = PYTHONS[version]()
    with cores.Running(python.command(str(truth.PROGRAMS / "python_tasks.py")), tmp_path, python.environment()) as one:
        chains = json.loads(one.output.splitlines()[0])
        found = tasks("--pid", str(one.pid)) if picture == "live" else tasks(str(one.kernel_core()))
    assert len(chains) == 12
    for number, chain in chains:
        stack = found[number]
        read = [[frame["file"], frame["line"], frame["function"].rsplit(".", 1)[-1]] for frame in stack["frames"]]
        assert read == chain, number
        assert (stack["kind"], stack["state"]) == ("asyncio task", "pending")
        assert stack["reason"].startswith("waits for ")
    # One task has ended, and the task that prints is running.
    assert [one["state"] for number, one in found.items() if number not in dict(chains)] == ["running"]


MANY = """
import asyncio

class Client:
    async def run(self):
        await self.receive()

    async def receive(self):
        await self.closed

async def main():
    Client.closed = asyncio.get_running_loop().create_future()
    clients = [asyncio.create_task(Client().run()) for _ in range(1500)]
    ended = [asyncio.create_task(asyncio.sleep(0)) for _ in range(500)]
    others = [asyncio.create_task(asyncio.sleep(1e6)) for _ in range(400)]
    await asyncio.wait(ended)
    await asyncio.sleep(0)
    print("ready", flush=True)
    await asyncio.sleep(1e6)

asyncio.run(main())
"""


@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, "3.11"))
def test_many_tasks_that_wait_at_one_place(version: str, tmp_path: Path) -> None:
    """`verdict` names the place in the code with its line, and the variable that refers to the tasks."""
    python, source = PYTHONS[version](), tmp_path / "server.py"
    source.write_text(MANY)
    with cores.Running(python.command(str(source)), tmp_path, python.environment()) as one:
        core = str(one.kernel_core())
    found = json.loads(debuggers.findleaks("verdict", "--json", core))["findings"]
    (finding,) = [each for each in found if each["finding"] == "pending-tasks"]
    assert "1,500 asyncio tasks wait in " in finding["text"] and "receive (" in finding["text"]
    facts = finding["evidence"]
    assert (facts["tasks"], facts["file"], facts["line"]) == (1500, str(source), MANY.splitlines().index("        await self.closed") + 1)
    assert facts["function"].rpartition(".")[2] == "receive" and facts["outermost"].rpartition(".")[2] == "run"
    assert finding["bytes"] > 1500 * 3 * 64
    path = json.loads(debuggers.findleaks(*finding["next"][0].split(), "--json", core))["path"]
    # Up to Python 3.10, frames are objects, and their variables have no names.
    assert any("clients" in step["from"] for step in path) or (path and version in ("3.9", "3.10")), path


NEW = """
import asyncio, time

async def handle(number, other):
    await asyncio.sleep(number)

async def main():
    future = asyncio.get_running_loop().create_future()
    waiting = [asyncio.create_task(handle(at, future)) for at in range(1500)]
    print("ready", flush=True)
    time.sleep(1e6)

asyncio.run(main())
"""


@pytest.mark.parametrize("version", mark_matrix_except(VERSIONS, "3.11"))
def test_tasks_that_were_not_started(version: str, tmp_path: Path) -> None:
    """The arguments of a coroutine are not objects for which it waits."""
    python, source = PYTHONS[version](), tmp_path / "server.py"
    source.write_text(NEW)
    with cores.Running(python.command(str(source)), tmp_path, python.environment()) as one:
        found = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(one.pid)))["findings"]
    (text,) = [each["text"] for each in found if each["finding"] == "pending-tasks"]
    assert text == f"In use, not leaked: 1,500 asyncio tasks wait in handle ({tmp_path.name}/server.py:4): each waits to be started."
