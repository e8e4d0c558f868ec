"""The `verdict` command: account for resident memory, list problems, and suggest remedies."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.verdict import account_for_memory
from findleaks.answers.warnings import warnings_of
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.commands import command
from findleaks.commands.options import add_residency
from findleaks.commands.result import Plain, answer_status
from findleaks.commands.verdict_text import text
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_residency(parser)


@command(arguments=_arguments)
def verdict(session: Session, args: argparse.Namespace) -> Plain:
    """Account for all resident memory, and list the problems, largest first, each with its evidence
    and what to try: leaked blocks, memory retained by one root, free memory that an allocator has
    not returned (and how much of it a call returns), thread caches, V8 scopes with too many
    handles, and threads that were never joined. `verdict` also reports when there are no leaks.

    Shares are resident bytes, and their sum is all resident memory. For a core, the residency of
    pages is known if the kernel wrote the file and it was not copied, or from a file that `map
    --save-residency` wrote before gcore. Otherwise `verdict` prints mapped bytes, and states
    this."""
    found = account_for_memory(session, args.residency)
    lines = partial(text, session, found)
    warnings = warnings_of(session, find_unread_memory(session).is_most)
    return Plain(session, "verdict", found.result, lines, answer_status(session), warnings, found.accounting.warnings)
