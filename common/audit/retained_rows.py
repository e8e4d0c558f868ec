"""Rows of the retained tree, and phrases that describe what they retain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.audit.container_samples import STRINGS
from findleaks.audit.containers import Container
from findleaks.audit.fields import NOTHING
from findleaks.audit.owner import Owner
from findleaks.engine.terms import Totals
from findleaks.formatting import format_count, shorten, size
from findleaks.value_classes import NamedTuple, dataclass, field

_NAMED = 2  # types of a container's other blocks that the text names


class RetainedBlocks(NamedTuple):
    """Blocks of one size that the nodes of a container retain. `type`: the type of the examined
    blocks, STRINGS if they are text, "" if it is unknown."""

    size: int
    blocks: int
    type: str


@dataclass
class Contents:
    """The contents of a container: its nodes, and the blocks that it retains."""

    container: Container
    nodes: int  # number of blocks with nodes that the owner retains
    least: int  # usable bytes of the smallest node
    most: int  # usable bytes of the largest node
    # Blocks that contain no nodes and no tables, the sizes with the most bytes first
    kept: list[RetainedBlocks]


class SimilarFields(NamedTuple):
    """Several similar fields in one row."""

    fields: int
    least: int = 0  # fewest blocks that one of them retains; 0: unknown
    most: int = 0  # maximum number of blocks that one of them retains; 0: unknown


@dataclass
class RetainedNode:
    """A row of the tree: a root, a field, or a block."""

    name: str
    totals: Totals
    sort: str  # "root", "field", "block" or "shared"
    owner: Optional[Owner] = None
    place: str = ""  # the place of the field ("Profiler+0x68")
    what: str = ""  # the container, type or text that the field refers to
    address: int = 0  # address of the block, or of a root's memory
    offset: Optional[int] = None
    contents: Optional[Contents] = None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    # Rows of the next level; not more than the limit.
    fields: list[RetainedNode] = field(default_factory=list)
    left: int = 0  # number of fields without a row
    more: Totals = NOTHING  # memory that these fields retain
    shared: Totals = NOTHING  # memory that is reached through several fields
    shared_rows: list[RetainedNode] = field(default_factory=list)  # its largest blocks
    # For a shared block: labels of the roots that reach it
    holders: list[str] = field(default_factory=list)
    alike: Optional[SimilarFields] = None


def join_steps(steps: Sequence[tuple[str, str]]) -> list[str]:
    """Return steps as text: ["function make", "closure variable kept: list of 18"]. A step is the
    name of a field, and a phrase for the object that the field refers to."""
    joined: list[list[str]] = []
    for name, label in steps:
        if name:
            joined.append([name, label])
        elif label and joined and label == joined[-1][1]:
            continue  # the next part of a chain, such as that of a memory resource
        elif label and not label.startswith("tuple "):
            if joined and joined[-1][0] and not joined[-1][1]:
                joined[-1][1] = label
            else:
                joined.append(["", label])
    return [": ".join(filter(None, step)) for step in joined]


def describe_blocks(sizes: Sequence[tuple[int, int]], word: str = "block", plural: str = "s") -> str:
    """Describe blocks: "12 blocks of 48 B", "1,024 blocks of 24–4,096 B"."""
    count = sum(number for _, number in sizes)
    return (
        f"{count:,} {word}{'' if count == 1 else plural} of {_range(min(s for s, _ in sizes), max(s for s, _ in sizes))}" if sizes else ""
    )


def _range(least: int, most: int) -> str:
    return f"{least:,} B" if least == most else f"{least:,}–{most:,} B"


def describe_contents(contents: Contents) -> str:
    """Describe a container: "std::map or set, 98,000 nodes of 80 B and 49,000 strings of 48 B". Two
    types of other blocks are named: "and 5,000 Order of 40 B and 9 other blocks of 24–80 B"."""
    made = contents.container
    if made.nodes:
        unit = made.unit if made.length != 1 else made.unit[:-1]
        said = f"{made.length:,} {unit} of {_range(contents.least, contents.most)}"
    else:
        said = f"{made.length:,} {made.unit}" if made.unit != "bytes" else size(made.length)
    by_type: dict[str, list[tuple[int, int]]] = {STRINGS: []}
    for one in contents.kept:
        by_type.setdefault(one.type, []).append((one.size, one.blocks))
    strings, others = by_type.pop(STRINGS), by_type.pop("", [])
    typed = sorted(by_type, key=lambda name: -sum(length * number for length, number in by_type[name]))
    others += [pair for name in typed[_NAMED:] for pair in by_type[name]]
    named = [describe_blocks(by_type[name], shorten(name, 100), "") for name in typed[:_NAMED]]
    parts = [describe_blocks(strings, "string"), *named, describe_blocks(others, "other block" if named else "block")]
    said = " and ".join(part for part in (said, *parts) if part)
    trouble = f"; damaged: {made.problem}" if made.problem else ""
    return f"{made.what}, {said}{trouble}"


def describe_managed_variable(owner: Owner) -> str:
    """Describe a managed variable: "Array, 60,000 elements, with 60,001 objects of 2.3 MiB"."""
    unit, objects = owner.unit if owner.length != 1 else _SINGULAR.get(owner.unit, owner.unit), owner.objects
    length = f", {owner.length:,} {unit}" if owner.length is not None else ""
    held = f", with {format_count(objects.blocks, 'object')} of {size(objects.bytes)}" if objects.blocks else ""
    return f"{owner.what}{length}{held}"


_SINGULAR = {"elements": "element", "entries": "entry", "bytes": "byte"}
