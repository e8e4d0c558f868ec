"""B-trees of Rust and Abseil are recognised by their structure. Memory that contradicts this structure is no B-tree."""

from __future__ import annotations

from collections.abc import Callable

import graphs
import pytest
from containers import DATA, Building

from findleaks.engine.contract import Engine

ENGINES: list[Callable[[], Engine]] = [graphs.native, graphs.pure]
OWNER = DATA + 0x100


@pytest.fixture(params=ENGINES, ids=["native", "pure"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


@pytest.mark.parametrize(("rust", "what"), [(True, "BTreeMap or BTreeSet"), (False, "absl::btree_map or set")])
def test_a_btree(rust: bool, what: str, engine: Engine) -> None:
    made = Building()
    nodes, entries = made.btree(OWNER, rust)
    (found,) = made.found(OWNER, 16, engine)
    assert (found.what, found.length, found.recorded, found.end) == (what, entries, entries, OWNER + 24)
    assert sorted(found.nodes) == sorted(nodes)


@pytest.mark.parametrize("before", [1, 22])
def test_a_parent_behind_the_values(before: int, engine: Engine) -> None:
    """rustc places the parent behind the keys and values if these are wider."""
    made = Building()
    nodes, entries = made.btree(OWNER, before=before)
    (found,) = made.found(OWNER, 16, engine)
    assert (found.what, found.length, found.end) == ("BTreeMap or BTreeSet", entries, OWNER + 24)
    assert sorted(found.nodes) == sorted(nodes)


@pytest.mark.parametrize("rust", [True, False])
def test_contradictory_structures_are_no_btree(rust: bool, engine: Engine) -> None:
    """Three cases: too few or too many entries, a leaf with another parent, and a root that points to itself."""
    for change in ("few", "many", "parent", "itself"):
        made = Building()
        nodes, _ = made.btree(OWNER, rust)
        if change == "parent":
            made.put(nodes[1] + 8, *nodes[-8:])
        elif change == "itself":
            made.put(OWNER, OWNER)
        else:
            made.put(OWNER + 16, 5 if change == "few" else 1 << 40)
        assert all("tree" not in found.what or found.what == "binary tree" for found in made.found(OWNER, 16, engine)), change
