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
def test_root_of_a_path_with_one_object_is_named(path: str, text: str) -> None:
    """If the path has only one object, the description also names its root. Otherwise it would not show what keeps the object alive."""
    graph = SimpleNamespace(graph=object(), describe_path=lambda block: path, describe_root=lambda block: "global handle of Conn")
    found: Any = SimpleNamespace(graph=graph, object=SimpleNamespace(block=1))
    assert _describe_path(found) == text
