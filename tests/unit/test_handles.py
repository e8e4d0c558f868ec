"""The structures of the C engine may be freed in any order, because the collector of reference cycles frees them in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import graphs
import pytest

SETUP = """
import gc
import graphs
from findleaks.engine.dominators import root_node
from findleaks.engine.native.library import Handle

heap = graphs.random_heap(7, 400, 16, 3)

def interrupted(function):
    def pieces():
        yield from heap.pieces
        raise KeyboardInterrupt
    try:
        function(pieces(), graphs.VTABLES)
    except KeyboardInterrupt as error:
        return error # its traceback has the frame, which has the handle

def dominators(graph):
    made = graph.dominators(2)
    made.refer(0, range(0, len(graph.blocks), 3))
    while not made.compute(1 << 20):
        pass
    return made

def interiors(graph):
    scanned = graphs.scan_graph(graphs.native(), heap, graphs.Heuristic.AUTO)
    while not scanned.mark(1 << 20):
        pass
    return scanned.interiors()

MAKERS = {
    "fl_graph_free": lambda graph: graph,
    "fl_groups_free": lambda graph: (interrupted(graph.groups), interrupted(graph.group_typed)),
    "fl_interior_count_free": interiors,
    "fl_dominators_free": dominators,
    "fl_fields_free": lambda graph: dominators(graph).within(root_node(0), 2),
}
"""
"""Programs that free every structure that refers to another one. MAKERS: what makes it, by the function that frees it."""

IN_ORDER = """
for name, make in MAKERS.items():
    for order in (PARENTS, PARENTS[::-1]):
        kept = make(graphs.graph_of(graphs.native(), heap))
        handles = [one for one in gc.get_objects() if isinstance(one, Handle) and one]
        handles.sort(key=lambda one: order.index(one._free.__name__))
        assert name in [one._free.__name__ for one in handles], name
        for one in handles:
            one.__del__()
            assert not one
        del one, handles, kept
print("done")
"""

IN_CYCLES = """
class Cycle:
    pass

freed, before = [], Handle.__del__

def free(handle):
    if handle:
        freed.append(handle._free.__name__)
    before(handle)

Handle.__del__ = free
gc.disable()
for make in MAKERS.values():
    for _ in range(3):
        cycle = Cycle()
        cycle.itself, cycle.made = cycle, make(graphs.graph_of(graphs.native(), heap))
        freed.clear()
        del cycle
        assert not freed # only the collector frees what is in a cycle
        gc.collect()
        assert "fl_blocks_free" in freed and "fl_graph_free" in freed
print("done")
"""

PARENTS = ["fl_blocks_free", "fl_graph_free", "fl_dominators_free", "fl_interior_count_free", "fl_groups_free", "fl_fields_free"]


@pytest.mark.parametrize("code", [IN_ORDER, IN_CYCLES], ids=["in order", "in cycles"])
def test_no_structure_reads_its_parent_when_freed(code: str) -> None:
    """malloc overwrites freed memory in this process (mallopt(3), M_PERTURB), so that reading a pointer from it crashes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(graphs.__file__).parent), "MALLOC_PERTURB_": "165"}
    environment["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=0"  # memory in a tcache is not overwritten
    program = SETUP + f"PARENTS = {PARENTS}\n" + code
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
