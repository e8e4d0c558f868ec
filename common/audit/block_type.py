"""The type of a block, the same in every command: the class of the managed object in it, or the
type that its content shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.engine.terms import NO_LABEL, State
from findleaks.session import Session


def find_block_type(session: Session, index: int) -> str:
    """Return the type of a block in use, safe to print; "" if unknown or not in use.
    It is the class of the managed object in the block, else the result of Types.of_block."""
    blocks = session.directory.blocks
    if blocks.state(index) != State.IN_USE:
        return ""
    managed = find_object_type(session, index)
    if managed is not None:
        return managed
    start = blocks.address(index)
    return session.types.of_block(start, blocks.size(index)) or name_mapping(session, start)


def name_mapping(session: Session, start: int) -> str:
    """Return the type of a leaked mapping that starts here; "" for other blocks."""
    if not session.directory.mappings.has(start):
        return ""
    # Few processes have leaked mappings.
    from findleaks.audit import mapping_contents

    return mapping_contents.name_mapping(session, start)


def find_object_type(session: Session, index: int) -> Optional[str]:
    """Return the class of the managed object in this block, safe to print; None if it has none."""
    known = session.object_types
    label = known.types[index] if known is not None else NO_LABEL
    return known.names[label] if known is not None and label != NO_LABEL else None


def label_names(session: Session) -> Mapping[int, str]:
    """Map the graph's labels (Graph.set_labels) to names of types."""
    known = session.object_types
    return {} if known is None else session.once(label_names, lambda: dict(enumerate(known.names)))
