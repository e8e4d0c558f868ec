"""Paths to managed objects, as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.audit.managed_holder import _describe_path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("Conn", "global handle of Conn: Conn"),
        ("variable pool (app.js) → Map → Conn", "variable pool (app.js) → Map → Conn"),
        ("", ""),
    ],
)
def test_the_root_of_an_object_to_which_it_refers_is_named(path: str, text: str) -> None:
    """A path of one object would not tell what keeps the object alive."""
    graph = SimpleNamespace(graph=object(), describe_path=lambda block: path, describe_root=lambda block: "global handle of Conn")
    found: Any = SimpleNamespace(graph=graph, object=SimpleNamespace(block=1))
    assert _describe_path(found) == text
