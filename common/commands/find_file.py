"""The file that `find -o` writes: the groups of lost blocks as stacks, or the lost blocks."""

from __future__ import annotations

from collections.abc import Sequence, Set

from findleaks.audit.leak_groups import Leak
from findleaks.commands.blocks_rows import BlockRows, Filters
from findleaks.commands.export import of_target, write_blocks, write_profile
from findleaks.commands.output import BLOCKS, Written
from findleaks.commands.profiles import of_leaks
from findleaks.engine.terms import Kind, State
from findleaks.session import Session


def write(session: Session, file: str, form: str, kinds: Set[Kind], leaks: Sequence[Leak]) -> Written:
    """Write what `find` shows: `leaks`, or as CSV or SQLite the blocks of these `kinds`, with
    those that hang from them."""
    if form not in BLOCKS:
        return write_profile(session, of_target(of_leaks(session, leaks), session.target), file, form)
    wanted = {*kinds, Kind.INDIRECT} if Kind.DEFINITE in kinds else set(kinds)
    rows = BlockRows(session, Filters({int(kind) for kind in wanted}, {State.IN_USE}, None, None, None))
    return write_blocks(session, rows, file, form)
