"""Test the search for the holders of V8's largest objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeTarget

from findleaks.engine.terms import Totals
from findleaks.errors import Interrupted
from findleaks.runtimes.node import verdict_findings


def graph(objects: int, target: FakeTarget) -> Any:
    found = [SimpleNamespace(object=SimpleNamespace(block=one, address=8 * one), retained=Totals(1, 100 - one)) for one in range(50)]
    return SimpleNamespace(
        target=target, blocks=range(objects), retainers=lambda most: found[:most], describe_holder=lambda block: f"holder {block % 4}"
    )


@pytest.mark.parametrize(("objects", "searched"), [(1 << 20, 50), ((1 << 20) + 1, 8)])
def test_number_of_searches(objects: int, searched: int) -> None:
    """A search takes time proportional to the size of the heap, so a large heap has fewer."""
    holders = verdict_findings._name_holders(graph(objects, FakeTarget({})))
    assert [one.name for one in holders[:2]] == ["holder 0", "holder 1"] and sum(one.objects for one in holders) == searched


def test_ctrl_c() -> None:
    with pytest.raises(Interrupted):
        verdict_findings._name_holders(graph(50, FakeTarget({}, stop_after=3)))
