"""Name the blocks that the nodes of a container retain, from a sample of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from findleaks.audit.block_contents import find_hint
from findleaks.audit.block_type import find_block_type
from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import ContainerReader
from findleaks.block_types.naming import STRING_NAMES
from findleaks.engine.dominators import Dominators
from findleaks.session import Session

SAMPLE = 48  # blocks of one size that are examined
# Part of these blocks that must have the same type. The others must have no known type: among the
# objects of a base class, each fifth may be of another derived class.
MOST_ALIKE = 0.75
STRINGS = "string"
_UNNAMED = "{...}"  # part of the name of a type without a name, such as that of a lambda expression


def name_kept_blocks(
    session: Session, reader: ContainerReader, tree: Dominators, node: int, total: int, sizes: Set[int], container: Container
) -> dict[int, str]:
    """Return, by size, the type of the blocks of these `sizes` that a container retains, except its
    nodes: STRINGS for text, or a type that findleaks knows. Sizes whose blocks differ are left out.
    `node`: the number of the container's owner in `tree`; `total`: the number of blocks that the
    owner retains."""
    blocks, nodes = reader.blocks, container.nodes
    indices = [index for number in range(SAMPLE) for index in tree.members(node, number * total // SAMPLE, 4)]
    sample = [(index, blocks.address(index), blocks.size(index)) for index in indices]
    first = reader.place(nodes[0]) if nodes else None
    into = first.offset if first is not None else 0  # offset of each node in its block
    own = reader.select_nodes(nodes, {start + into for _, start, length in sample if length in sizes})
    seen: dict[int, Counter[str]] = {}
    for index, start, length in sample:
        if length in sizes and start + into not in own and sum(seen.setdefault(length, Counter()).values()) < SAMPLE:
            is_text = find_hint(session, start, length).startswith('"')
            seen[length][STRINGS if is_text else _short_type(session, index)] += 1
    named = {length: [name for name in types if name] for length, types in seen.items()}
    alike = {length: names[0] for length, names in named.items() if len(names) == 1}
    return {length: name for length, name in alike.items() if seen[length][name] >= MOST_ALIKE * sum(seen[length].values())}


def _short_type(session: Session, index: int) -> str:
    """Return the type of a block; "" if it is unknown or has no name."""
    name = find_block_type(session, index)
    for string in STRING_NAMES:
        name = name.replace(string, "std::string")
    return "" if _UNNAMED in name else name
