"""The sentence on the types whose objects retain most of the memory names a variable that refers to objects of one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.audit.findings.retained import _describe_types

CHAINS = {"Class": "ENGINE.@compiled (Ruby variable): Hash, 3,000 entries"}


def describe(*rows: tuple[str, int], has_graph: bool = False) -> tuple[str, tuple[str, ...]]:
    """Describe the types of one runtime: name and retained bytes of each."""
    runtime = SimpleNamespace(
        objects_are_native=False,
        object_graph=lambda: object() if has_graph else None,
        reference_chain=lambda name: CHAINS.get(name, ""),
        remedies=lambda name: [f"drop each {name}"],
    )
    types = [
        SimpleNamespace(type=SimpleNamespace(name=name, objects=3000), held=SimpleNamespace(bytes=retained)) for name, retained in rows
    ]
    accounting: Any = SimpleNamespace(native=[SimpleNamespace(runtime=runtime, types=types)])
    return _describe_types(accounting, 1000)


@pytest.mark.parametrize("first", ["String", "Class"])
def test_the_first_type_with_a_chain_is_named(first: str) -> None:
    second = {"String": "Class", "Class": "String"}[first]
    sentence, remedies = describe((second, 200), (first, 400), ("Small", 99))
    assert f"3,000 {first}: 400 B; 3,000 {second}: 200 B. One of the Class objects is reached by ENGINE.@compiled" in sentence
    assert "Small" not in sentence
    assert remedies == ("drop each Class",)


def test_types_without_a_chain() -> None:
    expected = " Objects that retain a tenth of it or more: 3,000 String: 400 B.", ("drop each String",)
    assert describe(("String", 400), ("Class", 99)) == expected
    assert describe(("Class", 99)) == ("", ())
    sentence, remedies = describe(("Class", 400), has_graph=True)
    assert "reached by" not in sentence and remedies == ("drop each Class",)
