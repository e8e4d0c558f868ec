"""`verdict`: accounts for resident memory, reports what is wrong with it, suggests what to try."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.verdict import account_for_memory
from findleaks.answers.warnings import warnings_of
from findleaks.audit.unread_memory import unread_memory
from findleaks.commands import command
from findleaks.commands.options import add_residency
from findleaks.commands.result import Plain, answer_status
from findleaks.commands.verdict_text import text
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_residency(parser)


@command(arguments=_arguments)
def verdict(session: Session, args: argparse.Namespace) -> Plain:
    """Account for the whole resident memory, and say in plain words what is wrong, biggest first,
    each with its evidence and what to try: lost blocks, memory held by one root, free memory that
    an allocator keeps (and how much of it a call gives back), thread caches, V8 scopes that hoard,
    threads never joined. Lists all causes; also reports when there are no leaks.

    Shares are resident bytes and sum up to all that is resident. Which pages were resident is known
    of a core if the kernel wrote it and nothing copied it, or with a file that `map
    --save-residency` wrote before gcore; otherwise mapped bytes are shown, and said to be."""
    found = account_for_memory(session, args.residency)
    lines = partial(text, session, found)
    warnings = warnings_of(session, unread_memory(session).is_most)
    return Plain(session, "verdict", found.result, lines, answer_status(session), warnings, found.accounting.warnings)
