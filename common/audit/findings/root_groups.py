"""Describe the roots that retain the most, if no single root retains most of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.engine.terms import Totals
from findleaks.formatting import blocks, size, some
from findleaks.quoting import shell_quoted
from findleaks.runtimes.retained_findings import find_path_remedies
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.owner import Owner
    from findleaks.audit.top_retainer import RootGroup
    from findleaks.session import Session

_STREAMS = "_IO_list_all"
_NAMED = 3  # maximum number of groups that a sentence names
_MOST = 0.5  # the title names a group that retains at least this fraction of the reachable memory


class RootGroupText(NamedTuple):
    """`title`: the title of the finding, if one group retains most of the reachable memory, else
    "". `cause`: sentences. `commands`: the command that shows the first group."""

    title: str
    cause: str
    commands: tuple[str, ...]
    facts: list[dict[str, object]]


def describe_streams(owner: Owner) -> str:
    """Return a sentence about glibc's list of streams (libio/genops.c); "" for other roots."""
    is_list = owner.name == _STREAMS and owner.where.startswith("libc")
    return " These are streams (FILE) that fopen() or a similar function opened, and that fclose() did not close." if is_list else ""


def is_most_of(group: RootGroup, reached: Totals) -> bool:
    """Whether roots of several threads together retain most of the reachable memory."""
    return len(group.owners) > 1 and group.totals.bytes >= _MOST * reached.bytes


def describe_root_groups(groups: Sequence[RootGroup], reached: Totals, content: str) -> RootGroupText:
    """Return the text about groups of roots. `content`: a sentence about what the first root of the
    first group retains; "" if it is not known. `reached`: the reachable memory."""
    first = groups[0]
    count = len(first.owners)
    facts: list[dict[str, object]] = [
        {"name": one.owners[0].name, "roots": len(one.owners), "bytes": one.totals.bytes, "blocks": one.totals.blocks} for one in groups
    ]
    word = first.owners[0].word
    commands = (f"roots {shell_quoted(word)} --depth 4",) if word else ()
    if is_most_of(first, reached):
        part = 100 * first.totals.bytes // max(reached.bytes, 1)
        title = f"In use, not leaked: {first.label} {first.retain} {size(first.totals.bytes)} in "
        title += f"{blocks(first.totals.blocks)}, {part} % of the reachable memory."
        return RootGroupText(title, f"The largest is {first.owners[0].label}. {content}".strip(), commands, facts)
    listed = some([f"{one.label} ({size(one.totals.bytes)})" for one in groups], _NAMED)
    text = f"The largest {'root is' if len(groups) == 1 == count else 'roots are'} {listed}."
    if content:
        text += f" {content}" if len(groups) == 1 == count else f" The first: {content[:1].lower()}{content[1:]}"
    return RootGroupText("", text, commands, facts)


def list_variable_remedies(session: Session, owner: Owner) -> tuple[str, ...]:
    """Return what frees the memory that a variable of a runtime's library retains; () if the
    variable is not one of these."""
    runtimes = session.runtimes if owner.is_variable and not owner.managed else ()
    return tuple(remedy for runtime in runtimes for remedy in find_path_remedies(runtime, owner.label))
