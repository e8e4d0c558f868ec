"""The name of the field that retains most of the memory below a variable."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.audit.retained_rows import RetainedNode
from findleaks.audit.top_retainer import _deepest_named
from findleaks.engine.terms import Totals


def row(sort: str, name: str, what: str, fields: Sequence[RetainedNode] = (), shared: Sequence[RetainedNode] = ()) -> RetainedNode:
    place = name if sort == "field" else ""
    return RetainedNode(name, Totals(10, 1000), sort, place=place, what=what, fields=list(fields), shared_rows=list(shared))


def test_a_block_of_several_fields_is_named_by_its_class() -> None:
    queue = row("field", "._queue", "collections.deque of 20,000", [row("field", "collections.deque+0x28", "60,000 blocks")])
    for block, expected in (
        (row("block", "__main__.Broker at 0x7f86112a4430", ".queue", [queue]), "__main__.Broker.queue → ._queue"),
        (row("block", "tuple of 2 at 0x7f860f1f9870", "list of 3", [queue]), "._scheduled → ._queue"),
    ):
        scheduled = row("field", "._scheduled", "list of 2", shared=[block])
        found, level = _deepest_named(row("root", "policy", "", [scheduled]))
        assert found is not None
        assert (found.name, found.what, level) == (expected, "collections.deque of 20,000", 3)


def test_a_collection_of_several_fields_is_named_if_no_field_is() -> None:
    items = row("block", "dict of 30,000 at 0x7f813bfabaf0", "", [row("field", "", "29,998 blocks of 64 B")])
    unnamed = row("block", "tuple of 2 at 0x7f860f1f9870", "", shared=[items])
    active = row("root", "threading._active", "dict of 3", shared=[unnamed])
    assert _deepest_named(active) == (items, 2)
    assert _deepest_named(row("root", "threading._active", "dict of 3", [row("field", "._jobs", "list of 2", shared=[items])]))[1] == 1
