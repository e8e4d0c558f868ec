"""Test what `verdict` says about the functions of retained closures, and about the memory of ArrayBuffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeTarget

from findleaks.engine.reference.engine import PureEngine
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


def test_functions_that_release_nothing_of_addons(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some successive blocks that belong to no addon, the arguments of the function are not examined."""
    monkeypatch.setattr(addon_files, "_MOST_MISSES", 2)
    directory: Any = SimpleNamespace(blocks=SimpleNamespace(lookup=lambda address: None))
    files = addon_files.AddonFiles(FakeTarget({}, modules=[Module("/app/a.node", 0x5000, 0x5000, 0x6000)]), directory)
    own, other = (0x1000, 0x5800), (0x1000, 0x2000)
    assert [files.find_releasing(words) for words in (other, own, other, other, own)] == ["", "/app/a.node", "", "", ""]
    assert files.find_releasing((0x1008, 0x5800)) == "/app/a.node"
