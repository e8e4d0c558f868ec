"""The variable that findleaks names for a Node-API reference if several variables of the addon lead to it."""

from __future__ import annotations

import pytest

from findleaks.runtimes.node.addon_variables import Reached, choose_variables

CASES = [
    pytest.param({"list": {1, 2, 3}, "table": {4, 5}}, {1: "list", 2: "list", 3: "list", 4: "table", 5: "table"}, id="apart"),
    pytest.param({"list": {1, 2, 3}, "last": {3}}, {1: "list", 2: "list", 3: "last"}, id="end of a list"),
    pytest.param({"array": {1, 2, 3, 4}, "tree": {3, 4}}, {1: "array", 2: "array", 3: "tree", 4: "tree"}, id="stale pointer to a tree"),
    pytest.param({"a": {1, 2, 3}, "b": {3, 4}}, {1: "a", 2: "a", 4: "b"}, id="overlap"),
    pytest.param({"a": {1, 2, 3}, "b": {3, 4}, "last": {3}}, {1: "a", 2: "a", 3: "last", 4: "b"}, id="part of both"),
    pytest.param({"head": {1, 2}, "tail": {1, 2}}, {1: "head", 2: "head"}, id="both ends of a list"),
    pytest.param({"a": set(), "b": {1}}, {1: "b"}, id="no reference"),
]


@pytest.mark.parametrize(("variables", "expected"), CASES)
def test_chosen_variables(variables: dict[str, set[int]], expected: dict[int, str]) -> None:
    found = [Reached(name, frozenset(references), frozenset()) for name, references in variables.items()]
    assert choose_variables(found) == expected
