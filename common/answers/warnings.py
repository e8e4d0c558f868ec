"""Collect warnings: sentences about what limits the results of a session."""

from __future__ import annotations

from findleaks.audit.diagnostics import result_warnings, target_warnings
from findleaks.engine.load import missing_native, stale_native
from findleaks.session import Session

SLOW = 3.0  # findleaks warns of a missing C engine after this many seconds of work


def warnings_of(session: Session, unread_reported: bool = False) -> list[str]:
    """Return the warnings since the command began. `unread_reported`: whether the result already
    contains how much memory was not read."""
    used = session.uses.names
    found = [*target_warnings(session), *result_warnings(session, unread_reported)]
    computed = [session.unread.warning if "unread" in used else "", session.debug_files.warning if "debug_files" in used else ""]
    found += [*filter(None, computed), *(session.sites.warnings if "sites" in used else ())]
    found += [*source_warnings(session), *(session.type_index.warnings if "type_index" in used else ()), *_slow(session)]
    return found


def source_warnings(session: Session) -> list[str]:
    """Return warnings that explain why source lines or names are missing."""
    return session.sources.warnings if "sources" in session.uses.names else []


def _slow(session: Session) -> list[str]:
    arch = session.target.arch
    if session.engine.name != "pure" or (sum(session.seconds.values()) < SLOW and not stale_native(arch)):
        return []
    why = missing_native(arch)
    return [f"findleaks runs {why}"] if why else []
