"""`verdict` names the cause of leaks that are typical of Node, Ruby and Python: listeners, addons, collections of classes, queues."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import building
import debuggers
import mallocs_python
import nodes
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

COUNT = 20_000
LISTENERS = {
    "nested": "global variable application → Object.services → Object.messages → Bus._events → Object.data → Array of {count} elements",
    "topics": "variable bus ({script}) → Bus._events → Object of {count} properties",
    "target": 'global variable clock → EventTarget[kEvents] → Map["second"] → Object.next → Listener',
}
"""The path to the object that retains the listeners, by the holder of v8_holders.js."""


def ask(pid: int) -> list[dict[str, Any]]:
    """Return the findings of `verdict` about a process."""
    findings: list[dict[str, Any]] = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(pid)))["findings"]
    return findings


@pytest.mark.parametrize("version", mark_matrix_except(["18.20.8", "20.20.0", nodes.NEWEST], nodes.NEWEST))
@pytest.mark.parametrize("kind", mark_matrix_except(LISTENERS.keys(), "nested"))
def test_the_path_to_listeners(kind: str, version: str, tmp_path: Path) -> None:
    """Nested plain objects are not taken for a list, keys of small Maps have names, and objects with many properties a number."""
    program = str(truth.PROGRAMS / "v8_holders.js")
    with cores.Running([nodes.get(version), "--expose-gc", "--no-memory-reducer", program, kind, str(COUNT)], tmp_path) as one:
        (found,) = (finding for finding in ask(one.pid) if finding["finding"] == "retained-objects")
    assert found["evidence"]["path"].endswith(LISTENERS[kind].format(count=f"{COUNT:,}", script=program))
    assert f"{COUNT:,} closures onTick ({program}:" in found["cause"]


@pytest.mark.matrix
def test_references_of_an_addon_to_small_objects(tmp_path: Path) -> None:
    """The objects are a small part of V8's heap, but so many references of one addon are remarkable."""
    addon = tmp_path / "references.node"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", addon, truth.PROGRAMS / "v8_references.c"], check=True)
    program, count = str(truth.PROGRAMS / "v8_holders.js"), 40_000
    command = [nodes.get("20.20.0"), "--expose-gc", "--no-memory-reducer", program, "few", str(count), str(addon)]
    with cores.Running(command, tmp_path) as one:
        (found,) = (finding for finding in ask(one.pid) if finding["finding"] == "retained-objects")
    assert f"{count:,} Node-API references of {addon}" in found["text"]
    assert "napi_delete_reference" in found["try"][0]


WRAPPED = """
const addon = require(process.argv[1]), kept = []
for (let at = 0; at < {count}; at++) kept.push(addon.wrap())
console.log("ready")
setInterval(() => kept, 1e6)
"""


def test_objects_of_a_class_of_an_addon(tmp_path: Path) -> None:
    addon = building.compile_program(tmp_path, "node_object_wrap.cpp", "-shared", "-fPIC", "-O1", name="wrap.node")
    with cores.Running([nodes.get("20.20.0"), "-e", WRAPPED.format(count=COUNT), str(addon)], tmp_path) as one:
        found = next(finding for finding in ask(one.pid) if finding["finding"] == "held-by-managed-objects")
    assert f"{COUNT:,} objects of Session ({addon}) retain 57 MiB" in found["cause"]
    assert "Unref()" in found["try"][0]  # the handles are strong


CLASSES = {
    "classes": ("KEPT << Class.new {{ define_method(:text) {{ text }} }}", "is reached by KEPT (Ruby variable): Array, {count} elements"),
    "singletons": ("KEPT << text.tap {{ |one| def one.run; end }}", "KEPT ("),
    "constants": ('Registry.const_set("C#{{at}}", text)', "Variables that retain it: constants of Registry ("),
    "variables": ('Registry.instance_variable_set("@c#{{at}}", text * 10)', "variables of Registry ("),
    "lists": (
        'KEPT << Item.new.tap {{ |one| one.instance_variable_set("@c#{{at % 100}}", text * 10) }}',
        "KEPT (Ruby variable) alone retains ",
    ),
}
"""By kind: a statement, and what `verdict` prints. Ruby 3.3 and 3.4 store the variables of most Items in tables, because these objects have
many different lists of variables."""
CLASSES_SCRIPT = """
module Registry; end
class Item; end
KEPT = []
{count}.times do |at|
  text = "text of object " + at.to_s * 20
  %s
end
GC.start
puts "ready"
$stdout.flush
sleep
"""


OF_RUBY = [(kind, version) for kind in CLASSES for version in rubies.READ]


@pytest.mark.parametrize("case", mark_matrix_except(OF_RUBY, ("variables", rubies.SYSTEM)), ids="-".join)
def test_collections_of_classes_constants_and_variables(case: tuple[str, str], tmp_path: Path) -> None:
    kind, version = case
    statement, words = CLASSES[kind]
    ruby = rubies.get(version)
    count = COUNT if kind in ("constants", "variables") else COUNT // 2
    script = (CLASSES_SCRIPT % statement).format(count=count)
    with cores.Running([*ruby.words, "-e", script], tmp_path, dict(ruby.environment)) as one:
        causes = [f"{finding['text']} {finding['cause']}" for finding in ask(one.pid) if finding["cause"]]
    assert any(words.format(count=f"{count:,}") in cause for cause in causes), causes


QUEUE = f"""
import asyncio
class Service:
    def __init__(self): self.queue = asyncio.Queue()
async def consume(service):
    await service.queue.get()
    await asyncio.sleep(10000)
async def main():
    service = Service()
    task = asyncio.create_task(consume(service))
    for number in range({COUNT} + 1): await service.queue.put(b"job %d" % number * 50)
    await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.sleep(10000)
asyncio.run(main())
"""


@pytest.mark.parametrize("version", mark_matrix_except(mallocs_python.SUITES.keys(), "3.11"))
def test_a_queue_below_the_event_loop(version: str, tmp_path: Path) -> None:
    """The names of attributes are unknown before 3.11."""
    python = mallocs_python.get(version)
    with cores.Running(python.command("-c", QUEUE), tmp_path, python.environment()) as one:
        causes = " ".join(finding["cause"] for finding in ask(one.pid) if finding["cause"])
    if version in ("3.9", "3.10"):
        assert f": collections.deque of {COUNT:,}" in causes
    else:
        assert "local variable service of coroutine " in causes
        assert ".queue → " in causes and "._queue: collections.deque" in causes
