"""Find the node of a container that retains most of the container's memory.

Example: a registry is a list of three plugins, and one of them retains 30,000 instances. The list
alone does not show where the memory is."""

from __future__ import annotations

from array import array
from collections import Counter

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import ContainerReader
from findleaks.engine.dominators import Dominators
from findleaks.session import Session
from findleaks.session.known_types import known_types

MOST = 0.5  # fraction of a container's bytes that the node must retain; other nodes do not count
_LONGEST = 1 << 16  # nodes of the largest container that is examined
_STEPS = 64  # maximum number of nodes of a list that are examined
_CHUNK = 1 << 18  # nodes read between two checks for Ctrl-C


def find_heavy_node(reader: ContainerReader, container: Container, tree: Dominators, node: int, total: int) -> int:
    """Return the block index of the node that retains at least the fraction MOST of the container's
    `total` bytes; -1 if there is none. Memory that later nodes of the container retain is not
    included. `node`: the index in `tree` of the field that refers to the container, or of the first
    node of the container."""
    if not 0 < len(container.nodes) <= _LONGEST:
        return -1
    nodes = set(reader.blocks.find_all(container.nodes)[0])
    holder = node if node in nodes else -1
    for _ in range(_STEPS):
        children = tree.children(node, 1)
        if not children or children[0].bytes < MOST * total:
            return -1
        node = children[0].block
        if node not in nodes:
            return holder
        holder = node
    return -1


def count_node_sizes(reader: ContainerReader, container: Container) -> Counter[int]:
    """Return how many nodes have each usable size."""
    counted: Counter[int] = Counter()
    for first in range(0, len(container.nodes), _CHUNK):
        reader.report_progress()
        _, sizes = reader.blocks.find_all(container.nodes[first : first + _CHUNK])
        counted.update(dict(zip(*reader.engine.sum_by_value(sizes, array("Q")))))
    counted.pop(0, None)
    return counted


def has_no_other_links(session: Session, reader: ContainerReader, container: Container) -> bool:
    """Whether the nodes, according to debug information, have no links except those of this
    list."""
    known = known_types(session)
    if known is None or not container.nodes or "linked list" not in container.what:
        return False
    links = known.count_links(reader.blocks.find(container.nodes[0]))
    return links == (2 if "doubly" in container.what else 1)
