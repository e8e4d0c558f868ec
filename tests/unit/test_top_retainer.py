"""The name of the field that retains most of the memory below a variable."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.audit import top_retainer
from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.top_retainer import TopRetainer, _deepest_named
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import NO_OBJECT, ObjectTypes

NAME = attrgetter("name")


def make_row(sort: str, name: str, what: str, fields: Sequence[RetainedNode] = (), shared: Sequence[RetainedNode] = ()) -> RetainedNode:
    place = name if sort == "field" else ""
    return RetainedNode(name, Totals(10, 1000), sort, place=place, what=what, fields=list(fields), shared_rows=list(shared))


def test_a_block_of_several_fields_is_named_by_its_class() -> None:
    queue = make_row("field", "._queue", "collections.deque of 20,000", [make_row("field", "collections.deque+0x28", "60,000 blocks")])
    for block, expected in (
        (make_row("block", "__main__.Broker at 0x7f86112a4430", ".queue", [queue]), "__main__.Broker.queue → ._queue"),
        (make_row("block", "tuple of 2 at 0x7f860f1f9870", "list of 3", [queue]), "._scheduled → ._queue"),
    ):
        scheduled = make_row("field", "._scheduled", "list of 2", shared=[block])
        found, level = _deepest_named(make_row("root", "policy", "", [scheduled]), NAME)
        assert found is not None
        assert (found.name, found.what, level) == (expected, "collections.deque of 20,000", 3)


def test_a_collection_of_several_fields_is_named_if_no_field_is() -> None:
    items = make_row("block", "dict of 30,000 at 0x7f813bfabaf0", "", [make_row("field", "", "29,998 blocks of 64 B")])
    unnamed = make_row("block", "tuple of 2 at 0x7f860f1f9870", "", shared=[items])
    active = make_row("root", "threading._active", "dict of 3", shared=[unnamed])
    assert _deepest_named(active, NAME) == (items, 2)
    assert (
        _deepest_named(
            make_row("root", "threading._active", "dict of 3", [make_row("field", "._jobs", "list of 2", shared=[items])]), NAME
        )[1]
        == 1
    )


COUNT = 3000
SIZES = array("Q", (size for _ in range(COUNT) for size in (64, 100, 32, 300)))  # two kinds of objects, each with a separate block
SIZES[5] = 1 << 20


def retainer() -> tuple[TopRetainer, Any]:
    """Return a variable that retains COUNT lists and texts, and a session. Each list or text has a block that is not an object."""
    blocks = array("I", range(4 * COUNT))
    types = ObjectTypes(array("I", [0, NO_OBJECT, 1, NO_OBJECT] * COUNT), ["list", "text"], array("I", [1, 1]), "any", "object")
    tree = SimpleNamespace(members=lambda node, first, limit: blocks[first : first + limit], idom=lambda index: index - 1)
    columns = SimpleNamespace(columns_of=lambda indices: SimpleNamespace(size=array("Q", map(SIZES.__getitem__, indices))))
    session = SimpleNamespace(
        object_types=types,
        directory=SimpleNamespace(blocks=columns),
        engine=SimpleNamespace(sum_by_value=sum_by_value),
        target=SimpleNamespace(is_interrupted=lambda: False),
    )
    totals = Totals(len(blocks), sum(SIZES))
    return TopRetainer(None, totals, totals, None, (), tree, 0), session  # type: ignore[arg-type]


def sum_by_value(values: Sequence[int], weights: Sequence[int]) -> tuple[array[int], array[int]]:
    found: dict[int, int] = {}
    for at, value in enumerate(values):
        found[value] = found.get(value, 0) + (weights[at] if weights else 1)
    return array("Q", sorted(found)), array("Q", (found[value] for value in sorted(found)))


@pytest.mark.parametrize("examined", [1 << 20, 1000])
def test_bytes_of_types(examined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only some of the small blocks are examined, the bytes are estimates. Their sum is right, and large blocks are not estimated."""
    monkeypatch.setattr(top_retainer, "_EXAMINED", examined)
    found, session = retainer()
    types = dict(found.object_types(session))
    exact = {"list": Totals(COUNT, 164 * COUNT + (1 << 20) - 100), "text": Totals(COUNT, 332 * COUNT)}
    assert {name: total.blocks for name, total in types.items()} == dict.fromkeys(exact, COUNT)
    assert 0 <= sum(SIZES) - sum(total.bytes for total in types.values()) < len(types)
    for name, total in types.items():
        assert total.bytes == pytest.approx(exact[name].bytes, rel=0 if examined > 1000 else 0.05)
