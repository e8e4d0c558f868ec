"""Write the file of `find -o`: groups of leaked blocks as stacks, or the leaked blocks."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Optional

from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.audit.leak_groups import Leak
from findleaks.commands.export import block_batches, of_target, write_blocks, write_profile
from findleaks.commands.output import BLOCKS
from findleaks.commands.profiles import of_leaks
from findleaks.commands.site_profile import of_sites
from findleaks.engine.terms import Kind, State
from findleaks.results.written import WrittenFile
from findleaks.session import Session


def write(session: Session, file: str, form: str, kinds: Set[Kind], leaks: Optional[Sequence[Leak]]) -> WrittenFile:
    """Write the groups in `leaks`. If `leaks` is None, write the blocks of these `kinds` and the
    indirect blocks. They are written by allocating call stack, or as CSV, SQLite or Parquet."""
    if leaks is not None and form not in BLOCKS:
        return write_profile(session, of_target(of_leaks(session, leaks), session.target), file, form)
    wanted = {*kinds, Kind.INDIRECT} if Kind.DEFINITE in kinds else set(kinds)
    rows = BlockRows(session, BlockFilters({int(kind) for kind in wanted}, {State.IN_USE}, None, None, None))
    if form in BLOCKS:
        return write_blocks(session, rows, file, form)
    profile = of_sites(session, "Leaked blocks", "lost", block_batches(session, rows), form == "heap")
    return write_profile(session, of_target(profile, session.target), file, form)
