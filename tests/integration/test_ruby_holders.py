"""`path`, `refs` and `whatis` for Ruby objects that known variables keep alive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "ruby_holders.rb"
HOLDERS = {
    "Constant": ("Registry::CACHE (Ruby variable)", '["the one"]'),
    "Class_instance": ("Registry.@by_id (Ruby variable)", "[:symbol]"),
    "Class_variable": ("App.@@pairs (Ruby variable)", "[1]"),
    "Global": ("$table (Ruby variable)", "[0]"),
    "Member": ("Registry::CACHE (Ruby variable)", ".@other"),
    "Element": ("$many (Ruby variable)", "[41]"),
    "Key": ("$keys (Ruby variable)", "key"),
    "Wide": ("$wide.@last (Ruby variable)", ""),
    "Fiber_local": ("main thread's fiber-local variable :kept (Ruby variable)", "[0]"),
    "Thread_variable": ("main thread's thread variable :pending (Ruby variable)", ""),
    "Other_local": ("thread N's fiber-local variable :batch (Ruby variable)", ""),
    "Other_variable": ("thread N's thread variable :last one (Ruby variable)", "[0]"),
    "Captured": ("$handler's captured variable inside (Ruby variable)", "[0]"),
    "Captured_outside": ("$handler's captured variable outside (Ruby variable)", ""),
    "Of_block": ("Session#remember's captured variable remembered (Ruby variable)", "[0]"),
    "Of_singleton": ("singleton method keep's captured variable of_one", ""),
    "Queued": ("JOBS's elements (Ruby variable)", "[7]"),
    "Limited": ("$limited's elements (Ruby variable)", "[0]"),
    "Closure": ("App.@@hooks (Ruby variable)", None),
    "At_exit": ("at_exit blocks (Ruby variable)", None),
}
"""For each class: the variable that keeps the object of this class alive, and the name of the word that refers to the object. The name is
"" if this word is the variable itself, and None if it is a variable of a closure, which has no name."""
FRAMES = {"Local": "collect_and_wait", "Of_thread": "wait_in_thread"}
"""For each class, the method whose local variable refers to the only object of this class."""


class Waiting(NamedTuple):
    """A core of the program, and the address of the object of each class."""

    core: Path
    objects: dict[str, int]


@pytest.fixture(scope="module", params=mark_matrix_except(rubies.READ, rubies.SYSTEM))
def waiting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    ruby, folder = rubies.get(request.param), tmp_path_factory.mktemp("holders")
    with cores.Running([*ruby.words, str(PROGRAM)], folder, dict(ruby.environment)) as program:
        lines = [line.split() for line in program.output.splitlines() if " 0x" in line]
        yield Waiting(program.gcore(), {name: int(address, 16) for name, address in lines})


def ask(waiting: Waiting, command: str, address: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(debuggers.findleaks(command, "--json", hex(address), str(waiting.core)))
    return answer


@pytest.mark.parametrize("name", HOLDERS)
def test_a_path_begins_at_the_variable_and_names_the_words(waiting: Waiting, name: str) -> None:
    root, word = HOLDERS[name]
    found = ask(waiting, "path", waiting.objects[name])
    first = re.sub(r"^thread \d+", "thread N", found["path"][0]["from"])
    assert first == root or first.startswith(f"{root}, "), found
    assert found["target"]["object"]["type"] == name
    if word:
        last = found["path"][-1]["from"]
        assert last.endswith(f"; {word}"), last
    elif word == "":
        assert len(found["path"]) == 1
    assert found["path"][-1]["value"] == hex(waiting.objects[name])


@pytest.mark.parametrize("name", HOLDERS)
def test_references_are_those_that_the_program_made(waiting: Waiting, name: str) -> None:
    """The last reference of the path is among the references to the object. Other references, on stacks and in registers, may be stale."""
    found = ask(waiting, "refs", waiting.objects[name])
    last = ask(waiting, "path", waiting.objects[name])["path"][-1]
    assert last["address"] in [one.get("address") for one in found["references"] if one["live"]]


@pytest.mark.parametrize("name", FRAMES)
def test_a_local_variable_is_attributed_to_its_method(waiting: Waiting, name: str) -> None:
    found = ask(waiting, "refs", waiting.objects[name])
    frames = [one["from"]["text"] for one in found["references"] if one.get("from") is not None]
    pattern = rf"local variable or argument of (\S+#)?{FRAMES[name]} \(.*ruby_holders\.rb:\d+\)$"
    assert any(re.search(pattern, text) for text in frames), frames


def test_a_queue_in_a_local_variable_retains_its_elements(waiting: Waiting) -> None:
    """The queue has 500 texts, and the receiver of an Enumerator has two. Each text has a block of more than 1,000 bytes. The root shows
    the content of the queue, although other words of the frame come first."""
    found: dict[str, Any] = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", str(waiting.core)))
    (own,) = (one for one in found["roots"] if re.match(r"local variable or argument of (\S+#)?consume \(", one["name"]))
    assert own["retained_bytes"] >= 502_000, own
    assert 504 <= own["objects"]["count"] <= 515, own
    assert re.match(r"(Thread::)?Queue, with ", own["what"]), own


NAMED = {
    r"variables @plan of classes in GENERATED": 2 * 1199,
    r"#<Class:0x\w+>\.@plan": 1501,
    r"local variable deferred, captured by block .*start_worker \(.*'s elements": 501,
    "fiber-local variables :unsent of suspended fibers": 401,
}


def test_variables_that_no_stack_refers_to(waiting: Waiting) -> None:
    """The block of a thread captured one variable, a suspended fiber has another one, and 1,200 classes have a variable of the same name.
    One of the classes has a long Array, and keeps its name. A variable that a block of a waiting method captured belongs to the method."""
    found: dict[str, Any] = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", str(waiting.core)))
    for name, objects in NAMED.items():
        (own,) = (one for one in found["roots"] if re.match(name, one["name"]))
        # A word on a stack may still refer to one of the last objects.
        assert objects - 5 <= own["objects"]["count"] <= objects, own
    names = [one["name"] for one in found["roots"] if "wait_with_block (" in one["name"]]
    assert any(name.startswith("local variable size of ") for name in names), names
    assert not any("captured by" in name for name in names), names


def test_the_buffer_of_a_file_retains_nothing(waiting: Waiting) -> None:
    """The address of a text of 300,000 bytes in the buffer of LOG is not a reference. Only a local variable refers to the text."""
    found: dict[str, Any] = json.loads(debuggers.findleaks("roots", "--json", "LOG", str(waiting.core)))
    (log,) = found["roots"]
    assert 8_000 < log["retained_bytes"] < 200_000, log


def test_the_transient_heap_is_memory_of_ruby(waiting: Waiting, request: pytest.FixtureRequest) -> None:
    """Ruby 2.6 to 3.2 have a transient heap, an arena of 32 MiB."""
    found = debuggers.runtime_page("ruby", "--no-native", str(waiting.core))
    sizes = {part["name"]: part["bytes"] for part in found["parts"]}
    version = request.node.callspec.params["waiting"]
    assert sizes.get("transient heap") == (32 << 20 if version in ("2.7", "3.1") else None), sizes


def test_the_shape_tree_is_memory_of_ruby(waiting: Waiting, request: pytest.FixtureRequest) -> None:
    """Ruby 3.3 and newer map 404 MiB for shapes. Few are in use: each class of the program has one for each instance variable."""
    found = debuggers.runtime_page("ruby", "--no-native", str(waiting.core))
    parts = {part["name"]: part for part in found["parts"]}
    if request.node.callspec.params["waiting"] in ("2.7", "3.1"):
        assert "shape tree" not in parts
    else:
        assert parts["shape tree"]["bytes"] == 404 << 20 and 1000 < parts["shape tree"]["used"] < 100_000, parts


def test_whatis_names_classes_and_members(waiting: Waiting) -> None:
    (found,) = ask(waiting, "whatis", waiting.objects["Constant"])["answers"]
    assert found["text"].endswith(f"-byte Ruby object, Constant at {waiting.objects['Constant']:#x}")
    words = {one["member"]: one["text"] for one in found["words"] if one.get("member")}
    assert words["its class"].endswith("Ruby object, class Constant")
