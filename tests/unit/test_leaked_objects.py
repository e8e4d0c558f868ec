"""Which bytes of a runtime's types are left without leaked objects."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

from findleaks.audit.leaked_objects import exclude_leaked
from findleaks.audit.managed import RuntimeHoldings, TypeHoldings
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import ObjectTypes, Type
from findleaks.session import Session

NAMES = ("table", "function", "elements")


def make_session(leaked_parts: int, runtime: str = "Lua") -> Session:
    known = ObjectTypes(array("I"), NAMES, array("I", [1] * len(NAMES)), runtime, "", parts=(2,))
    graph = SimpleNamespace(label_totals=lambda kinds: [Totals(0, 0), Totals(0, 0), Totals(1, leaked_parts)])
    return cast(Session, SimpleNamespace(object_types=known, graph=lambda: graph))


def rows_left(session: Session, **rows: tuple[int, int, Totals]) -> dict[str, tuple[int, int]]:
    """`rows`: number and bytes of the objects, and the leaked ones."""
    types = [TypeHoldings(Type(name, count, size), None, None, leaked) for name, (count, size, leaked) in rows.items()]
    holdings = RuntimeHoldings(cast(Any, SimpleNamespace(name="Lua")), types, None)
    return {row.type.name: (row.type.objects, row.type.bytes) for row in exclude_leaked(session, holdings).types}


def test_large_and_small_arrays() -> None:
    """One of 1,001 tables leaked. The bytes that leaked with it are known, whether it is the large one or not."""
    every = 1001 * 56 + 1_000_000
    for elements in (1_000_000, 0):
        left = rows_left(make_session(elements), table=(1001, every, Totals(1, 56)), function=(10, 400, Totals(0, 0)))
        assert left == {"table": (1000, every - 56 - elements), "function": (10, 400)}


def test_leaked_parts_of_two_types() -> None:
    """The bytes are divided in proportion to the mean size. Their sum is exact."""
    left = rows_left(make_session(3000), table=(100, 20_000, Totals(10, 1000)), function=(100, 30_000, Totals(10, 1000)))
    assert left == {"table": (90, 18_000), "function": (90, 27_000)}


def test_parts_of_another_runtime() -> None:
    left = rows_left(make_session(3000, "Perl"), table=(100, 20_000, Totals(10, 1000)))
    assert left == {"table": (90, 19_000)}
