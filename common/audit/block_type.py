"""Find the type of a block, which is the same in every command, and how the type is known."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Optional

from findleaks.engine.columns import Numbers
from findleaks.engine.terms import NO_BLOCK, NO_LABEL, State
from findleaks.results.amounts import TypeSource
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.words import word_at
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.types.known import BlockType


class TypeOfBlock(NamedTuple):
    """A type, safe to print. `source`: how the type is known. `is_sure`: whether it is certain.
    `header`: the bytes before it in the block; see types/headers.py."""

    name: str
    source: TypeSource
    is_sure: bool
    header: int = 0

    @classmethod
    def of_word(cls, name: str, is_class: bool) -> TypeOfBlock:
        """Return the type that a block's first word identifies."""
        return cls(name, "rtti" if is_class else "pattern", is_class)


def find_block_type(session: Session, index: int) -> str:
    """Return the type of a block in use, safe to print; "" if unknown or not in use."""
    found = describe_block_type(session, index)
    return found.name if found is not None else ""


def describe_block_type(session: Session, index: int) -> Optional[TypeOfBlock]:
    """Return the type of a block in use; None if unknown or not in use.

    The sources are tried in this order: the class of the managed object in the block, the class
    that its vtable names, the type that follows from debug information, a guess from the
    content."""
    blocks = session.directory.blocks
    if blocks.state(index) != State.IN_USE:
        return None
    managed = find_object_type(session, index)
    if managed is not None:
        return TypeOfBlock(managed, "runtime", True)
    start, size = blocks.address(index), blocks.size(index)
    word = session.target.arch.word
    first = word_at(session.target, start) if size >= word and start % word == 0 else 0
    known = known_types(session)  # this sets session.types.embedded, on which is_class() depends
    is_class = bool(first) and session.types.is_class(first)
    found = known.of(index, size) if known is not None and not is_class else None
    if known is not None and found is not None:
        return TypeOfBlock(found.name, source_of(found), found.is_sure, known.header(index))
    name = session.types.of_block(start, size) or name_mapping(session, start)
    return TypeOfBlock.of_word(name, is_class) if name else None


def mark_texts(session: Session, text: Callable[[TypeOfBlock], int]) -> tuple[Numbers, array[int]]:
    """Return the arguments `marks` and `mark_texts` of RowRules: a mark for each block, and the
    number of the text for each mark. Both are empty without debug information.

    `text` returns the number of the text for a type. Arrays have no text, because the name of an
    array depends on the size of its block."""
    known = known_types(session)
    if known is None:
        return array("I"), array("I")
    texts = array("I", [NO_BLOCK] * 3)
    for layout in range(1, known.layouts):
        name = "" if known.is_array(layout) else known.layout_name(layout, 0)
        for source in ("debug-info", "inferred", "hint"):
            texts.append(text(TypeOfBlock(name, source, source != "inferred")) if name else NO_BLOCK)
    return known.claims, texts


def source_of(found: BlockType) -> TypeSource:
    """Return how a type from debug information is known."""
    if not found.is_sure:
        return "inferred"
    return "hint" if found.is_hint else "debug-info"


def name_mapping(session: Session, start: int) -> str:
    """Return the type of a leaked mapping that starts here; "" for other blocks."""
    if not session.directory.mappings.has(start):
        return ""
    # Few processes have leaked mappings.
    from findleaks.audit import mapping_contents

    return mapping_contents.name_mapping(session, start)


def find_object_type(session: Session, index: int) -> Optional[str]:
    """Return the class of the managed object in this block, safe to print; None if the block
    contains no such object."""
    known = session.object_types
    label = known.types[index] if known is not None else NO_LABEL
    return known.names[label] if known is not None and label != NO_LABEL else None


def is_managed(session: Session, index: int) -> bool:
    """Whether the block contains an object that is not a structure of native code."""
    known = session.object_types
    return known is not None and not known.are_native and find_object_type(session, index) is not None


def label_names(session: Session) -> Mapping[int, str]:
    """Map the graph's labels (Graph.set_labels) to names of types."""
    known = session.object_types
    return {} if known is None else session.once(label_names, lambda: dict(enumerate(known.names)))
