"""Test what `verdict` says about the functions of retained closures, and about the memory of ArrayBuffers."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeTarget

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import State
from findleaks.runtimes.node import addon_files
from findleaks.runtimes.v8 import paths, views
from findleaks.runtimes.v8.functions import JavaScriptFunction
from findleaks.runtimes.v8.names import CALL, CLOSURE
from findleaks.target.base import Module

OWN, OTHER = JavaScriptFunction("onData", "/app/server.js", 9), JavaScriptFunction("", "", 0)


@pytest.mark.parametrize(
    ("own", "name", "text"),
    [
        (100, CLOSURE, "100 closures onData (/app/server.js:9)"),
        (60, CLOSURE, "100 closures, most of them onData (/app/server.js:9)"),
        (20, CLOSURE, "100 closures, many of them onData (/app/server.js:9)"),
        (2, CLOSURE, "100 closures, for example onData (/app/server.js:9)"),
        (60, CALL, "100 Generator, most of them of onData (/app/server.js:9)"),
        (0, CALL, "100 Generator"),
    ],
)
def test_amount_of_functions(own: int, name: str, text: str) -> None:
    """A function of few closures is named only as an example."""
    graph: Any = SimpleNamespace(function_of=lambda index: OWN if index < own else OTHER)
    assert paths._describe_functions(graph, name, 100, range(100)) == text


@pytest.mark.parametrize(("place", "found"), [(0, (0, 0, 0)), (24, (1, 4096, 100))])
def test_views_of_unknown_buffers(place: int, found: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the offset of the length is unknown, the length of a buffer is unknown. The first word of the buffer is another number."""
    target = FakeTarget({0x1000: bytes.fromhex("0030") + bytes(22) + (4096).to_bytes(8, "little")})
    graph: Any = SimpleNamespace(target=target, engine=PureEngine(target.arch), offset_of=lambda name, field: place)
    monkeypatch.setattr(views, "_views", lambda graph: [(0x1001, 100)])
    assert views.measure_views(graph) == found


ADDONS = [Module(f"/app/{name}.node", start, start, start + 0x1000) for name, start in (("a", 0x5000), ("b", 0x7000))]


def test_stale_words_name_no_addon() -> None:
    """A function's block has the address of a block with an address in the addon. Stale words in most blocks refer to another addon. In
    a few blocks of another function, only such words refer to an addon."""
    blocks, memory = dict[int, tuple[int, int, int, State]](), dict[int, bytes]()

    def make_block(*words: int) -> int:
        address = 0x10000 + 0x100 * len(blocks)
        blocks[address] = len(blocks), address, 8 * len(words), State.IN_USE
        memory[address] = struct.pack(f"<{len(words)}Q", *words)
        return address

    own = [(0x1000, make_block(0, make_block(1, 0x5800), 0x7800 if number % 8 else 0)) for number in range(64)]
    others = [(0x2000, make_block(0, 0, 0x7800 if number < 6 else 0)) for number in range(64)]
    directory: Any = SimpleNamespace(blocks=SimpleNamespace(lookup=blocks.get))
    files = addon_files.AddonFiles(FakeTarget(memory, modules=ADDONS), directory)
    assert files.find_releasing(own + others + [(0x3000, 0x5800)]) == ["/app/a.node"] * 64 + [""] * 64 + ["/app/a.node"]


def test_stale_words_of_objects_name_no_addon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of one class have the address of the napi_env in their third word. Other words may be stale."""
    directory: Any = SimpleNamespace(blocks=SimpleNamespace(lookup=lambda address: None))
    files = addon_files.AddonFiles(FakeTarget({}), directory)
    monkeypatch.setattr(files, "_file", {0xA: "/app/a.node", 0xB: "/app/b.node"}.get)
    objects = [(0x1000, 0xB if number % 3 == 0 else 1, 0xA, 0xB if number % 2 else 2) for number in range(60)]
    assert {files.find(one) for one in objects} == {"", "/app/a.node"}  # unknown if the words differ
    files.learn(addon_files.take_sample(objects))
    assert {files.find(one) for one in objects} == {"/app/a.node"}
    without = [(0x2000, 0xB if number == 7 else 1) for number in range(60)]  # a class whose objects have no napi_env
    files.learn(without)
    assert {files.find(one) for one in without} == {""}


def test_the_same_stale_word_in_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word of the objects is a function of their addon."""
    directory: Any = SimpleNamespace(blocks=SimpleNamespace(lookup=lambda address: None))
    files = addon_files.AddonFiles(FakeTarget({}, modules=ADDONS), directory)
    monkeypatch.setattr(files, "_file", {0xA: "/app/a.node", 0xB: "/app/b.node"}.get)
    objects = [(0x1000, 0xB, 0xA, 0xB, 0x5800)] * 60
    files.learn(objects)
    assert {files.find(one) for one in objects} == {"/app/a.node"}
