"""Builds a session's directory: every block of every allocator, and leaked mappings as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.in_flight import find_threads_inside
from findleaks.session.leaked_mappings import find_leaked_mappings
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.session import Session


def compute_directory(session: Session) -> Directory:
    """Return the directory, and set what the session stores with it.

    The search for leaked mappings needs a session with all other blocks. If it finds some, the
    indices of blocks change, so that everything computed so far is dropped."""
    made = _walk_heaps(session, ())
    session.__dict__["directory"] = made  # As if this function had returned.
    try:
        found = find_leaked_mappings(session)
    except BaseException:
        session.drop_computed()
        raise
    if found.ranges or found.is_graph_partial:
        session.drop_computed()
        session.doubtful_mappings = found.doubtful
        made = _walk_heaps(session, found.ranges) if found.ranges else made
    return made


def _walk_heaps(session: Session, mapped: Sequence[Range]) -> Directory:
    """Read the heaps; again, after the process has run on, while a thread is changing them."""
    with session.timed("walk"):
        while True:
            session.report_progress("finding the heaps", 0.0)
            made = build_directory(session.target, session.engine, mapped)
            session.inside = find_threads_inside(session.target, made.allocators, made.blocks)
            made.remove_half_changed(session.inside)
            # Leaked mappings were found in the process as it is now.
            if mapped or not made.problems or not session.read_again():
                return made
