"""Test what `verdict` suggests about the global handles of an owner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.engine.terms import Totals
from findleaks.runtimes.node import verdict_findings

REMEDIES = [
    ("Node-API references of /app/a.node", "napi_delete_reference"),
    ("global handles of Node-API thread-safe functions of /app/a.node", "napi_release_threadsafe_function"),
    ("global handles of node::worker::MessagePort", "port.close()"),
    ("global handles of node::TCPWrap", "socket.destroy()"),
    ("global handles of node::contextify::ContextifyScript", "close or destroy each JavaScript object"),
    ("global handles of variable node::cache of /app/a.node", "v8::Global::Reset"),
    ("global handles", "v8::Global::Reset"),
]


@pytest.mark.parametrize(("name", "words"), REMEDIES)
def test_remedies(name: str, words: str) -> None:
    """A script cannot reset handles of Node's own classes, but it can close their objects."""
    group = SimpleNamespace(name=name, places=range(2000), objects=range(2000), variable="", in_variable=0)
    graph: Any = SimpleNamespace(
        retaining_groups=lambda: [(group, -2, Totals(2000, 8 << 20))],
        describe_content=lambda node: "It retains 2,000 Session.",
    )
    (found,) = verdict_findings._find_holders(graph, [])
    assert words in found.remedies[0]
