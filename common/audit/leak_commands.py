"""Commands that explain a group of leaked blocks, for the `next:` lines of results."""

from __future__ import annotations

from collections.abc import Iterable

from findleaks.audit.leak_groups import Leak
from findleaks.engine.terms import Kind
from findleaks.session import Session
from findleaks.target.arch import X86_64

TRACK_SECONDS = 30
"""Number of seconds in the suggested `track` command."""


def select_usable_commands(session: Session, commands: Iterable[str]) -> list[str]:
    """Return the commands that can be run on this target: see Target.trackable."""
    return [words for words in commands if session.target.trackable or not words.startswith("track ")]


def suggest_about(leak: Leak) -> str:
    """Return the command that explains a leaked block: what it retains, which references to it are
    left, or which interior pointers are on the way from a root."""
    example = f"{leak.examples[0]:#x}"
    if leak.kind == Kind.POSSIBLE:
        return f"path {example}"
    return f"roots {example}" if leak.most_indirect else f"refs {example}"


def suggest_track(session: Session, leak: Leak) -> tuple[str, ...]:
    """Return the `track` command that shows the allocations of such blocks; () if `track` cannot
    record them.
    `select_usable_commands` decides whether it can be run on this target."""
    if leak.is_mapping:
        return suggest_mapping_track(session)
    if not _is_trackable(session) or not leak.examples:
        return ()
    owner = session.directory.owner(leak.examples[0])
    # Blocks of such an allocator are not results of malloc
    if owner is None or owner.allocator.nested:
        return ()
    return (f"track --size {leak.size_words} --for {TRACK_SECONDS}",)


def suggest_mapping_track(session: Session) -> tuple[str, ...]:
    """Return the `track` command that shows which code maps memory; () if `track` cannot record
    it."""
    return (f"track --mmap --for {TRACK_SECONDS}",) if _is_trackable(session) else ()


def _is_trackable(session: Session) -> bool:
    target = session.target
    return target.live and target.pid is not None and target.arch.name == X86_64.name
