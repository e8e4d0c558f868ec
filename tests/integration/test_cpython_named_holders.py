"""Holders of Python's memory have names: attributes, closures, default arguments, keys, local variables. Collections have lengths."""

from __future__ import annotations

import re
from pathlib import Path

import debuggers
import mallocs_python
import pytest
import truth

import cores
import findleaks
from findleaks.audit.member_names import is_telling, name_managed_member, name_managed_object
from findleaks.audit.references import find_references

VERSIONS = [pytest.param(v, marks=() if v == "3.11" else pytest.mark.matrix) for v in mallocs_python.SUITES]
PROGRAM = truth.PROGRAMS / "python_named_holders.py"

NAMES = (
    ("list of 20", '["MODULE_LIST"]'),
    ("list of 19", '["cache"]'),
    ("list of 18", ""),  # held by a cell, which has no name
    ("list of 17", "default of argument seen"),
    ("list of 15", '["buffer"]'),
    ("list of 14", "local variable results"),
    ("list of 12", "local variable rows"),
    ("dict of 11", ".by_name"),
    ("list of 9", "local variable part"),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_and_members_are_named(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    is_new = tuple(map(int, version.split("."))) >= (3, 11)
    with cores.Running(python.command(str(PROGRAM)), tmp_path, python.environment()) as run:
        core = run.kernel_core()
        held, holders = (list(map(int, line.split())) for line in run.output.splitlines()[:2])
    assert len(held) == len(NAMES)
    with findleaks.open(core) as process:
        session = process._session
        for address, (phrase, name) in zip(held, NAMES):
            assert name_managed_object(session, session.directory.blocks.find(address)) == phrase
            places = [one.address for one in find_references(session, address, address + 1) if one.address and one.live]
            owners = [0, *holders]
            if not is_new:  # attributes are in a block of values, to which the object's dictionary refers
                name = f'["{name[1:]}"]' if name.startswith(".") else name
                indices = [session.directory.blocks.find(place) for place in places]
                starts = [session.directory.blocks.address(index) for index in indices if index >= 0]
                owners += [one.address - 40 for start in starts for one in find_references(session, start, start + 1) if one.address]
            found = {name_managed_member(session, place, holder) for place in places for holder in owners}
            wanted = {name} if name else set()
            assert {one for one in found if is_telling(one)} == wanted, (phrase, found)
        (cell,) = (
            place.address
            for place in find_references(session, held[2], held[2] + 1)
            if place.live and name_managed_member(session, place.address) == "cell_contents"
        )
        cells = {
            name_managed_member(session, one.address, holders[0]) for one in find_references(session, cell - 16, cell - 15) if one.address
        }
        assert "closure variable kept" in cells


CALLABLES = """
import contextvars, functools, time, weakref
class Server:
    def stop(self, *_):
        return None
    @functools.lru_cache(maxsize=500)
    def render(self, number):
        return number
def closed(data, reference):
    return None
server, variable = Server(), contextvars.ContextVar("history")
for number in range(70):
    server.render(number)
last = functools.partial(closed, b"data")
reference = weakref.ref(server, last)
held = [server.stop, last, functools.partial(server.stop), Server.render, variable, reference]
print(*map(id, held))
print("ready", flush=True)
time.sleep(3600)
"""
PHRASES = [
    "method Server.stop",
    "partial closed",
    "partial Server.stop",
    "lru_cache of 70, function Server.render",
    "context variable history",
    "",
]


@pytest.mark.parametrize("version", VERSIONS)
def test_methods_partials_caches_and_context_variables_are_named(version: str, tmp_path: Path) -> None:
    python = mallocs_python.get(version)
    with cores.Running(python.command("-c", CALLABLES), tmp_path, python.environment()) as run:
        core = run.kernel_core()
        held = list(map(int, run.output.split()[:-1]))
    with findleaks.open(core) as process:
        session = process._session
        assert [name_managed_object(session, session.directory.blocks.find(address)) for address in held] == PHRASES
        assert name_managed_member(session, held[-1] + 24) == "callback of weak reference"
        assert name_managed_member(session, held[3] + 72) == "cache"


@pytest.mark.matrix
def test_roots_show_the_names(tmp_path: Path) -> None:
    python = mallocs_python.get("3.11")
    with cores.Running(python.command(str(PROGRAM)), tmp_path, python.environment()) as run:
        found = debuggers.findleaks("roots", "--limit", "0", "--depth", "4", "--pid", str(run.pid))
    text = " ".join(found.split())
    # Which rows other holders have depends on stale words of freed memory.
    assert "keep_frame_local (CPython frame, thread" in text
    assert "asyncio task wait_for_ever" in text
    assert "__main__.MODULE_LIST (CPython variable)" in text


ORDERS = """
import time
ORDERS = [bytearray(200) for _ in range(5000)]
def make():
    rows = [{"number": number} for number in range(6000)]
    return lambda: rows
HANDLER = make()
print("ready", flush=True)
time.sleep(3600)
"""


NAMED = ("__main__.ORDERS", "__main__.HANDLER")


def test_the_row_of_a_list_counts_its_elements(tmp_path: Path) -> None:
    python = mallocs_python.get("3.11")
    with cores.Running(python.command("-c", ORDERS), tmp_path, python.environment()) as run:
        orders, handler = (" ".join(debuggers.findleaks("roots", name, "--depth", "4", "--pid", str(run.pid)).split()) for name in NAMED)
    assert "__main__.ORDERS (CPython variable): list of 5,000" in orders
    assert re.search(r"└ 5,000 pointers from \[0\]: \d+,\d+ blocks", orders), orders
    # The collector's link from the cell to the list is not a reference.
    assert "function make.<locals>.<lambda> → closure variable rows: list of 6,000" in handler and "several fields" not in handler, handler


@pytest.mark.parametrize("version", VERSIONS)
def test_a_queue_that_several_coroutines_use_is_named_by_its_variable(version: str, tmp_path: Path) -> None:
    """Only one root reaches the event loop and the queue. A stale word, such as one of a code object in 3.14, would be a second one."""
    python = mallocs_python.get(version)
    with cores.Running(python.command(str(truth.PROGRAMS / "python_shared_queue.py")), tmp_path, python.environment()) as run:
        verdict = debuggers.findleaks("verdict", "--pid", str(run.pid))
        roots = debuggers.findleaks("roots", "--depth", "6", "--pid", str(run.pid))
    holder, text = "frame" if version == "3.9" else "coroutine", " ".join(verdict.split())
    assert "asyncio.events._event_loop_policy (CPython variable)" in text and f"local variable backlog of {holder} main" in text, verdict
    assert f"local variable backlog of {holder} main: asyncio.queues.Queue at 0x" in " ".join(roots.split())
