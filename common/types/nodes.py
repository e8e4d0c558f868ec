"""Find the node types of the containers of libstdc++ and libc++."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.debuginfo.type_table import Kind, Part, PartKind, TypeTable

_NODE_TYPEDEFS = ("_Link_type", "__node_type", "_Node", "__node_pointer", "__node")
"""Typedefs of the standard libraries' containers for their node type, or a pointer to it."""


def is_node(name: str) -> bool:
    """Whether a type with this name is a node of a container of the standard library."""
    return name.startswith(("std::_Rb_tree_node<", "std::_List_node<", "std::_Fwd_list_node<", "std::__detail::_Hash_node<")) or (
        name.startswith("std::__1::__") and "_node<" in name
    )


def find_container_node(table: TypeTable, parts: Sequence[Part]) -> int:
    """Return the node type of a container of the standard library; 0 for other types."""
    for part in parts:
        if part.kind == PartKind.TYPEDEF and part.name in _NODE_TYPEDEFS:
            bare = table.bare(part.type)
            node = table.bare(table.targets[bare]) if table.kinds[bare] == Kind.POINTER else bare
            if table.kinds[node] == Kind.STRUCT and table.sizes[node]:
                return node
    return 0
