"""`verdict`: accounts for resident memory, reports what is wrong with it, suggests what to try."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Share, Store, account
from findleaks.audit.conventions import conventions_json
from findleaks.audit.diagnostics import notes
from findleaks.audit.findings import findings
from findleaks.audit.kernel_held import kernel_json, kernel_notes
from findleaks.audit.residency import residency
from findleaks.audit.unread_memory import unread_memory
from findleaks.commands import command
from findleaks.commands.result import Plain, answer_status, fields, warnings_of
from findleaks.commands.verdict_text import text
from findleaks.formatting import printable
from findleaks.session import Session
from findleaks.target.residency.presence import Presence


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--residency", metavar="FILE", default="", help="which pages were resident: what `map --save-residency` wrote")


@command(arguments=_arguments)
def verdict(session: Session, args: argparse.Namespace) -> Plain:
    """Account for the whole resident memory, and say in plain words what is wrong, biggest first,
    each with its evidence and what to try: lost blocks, memory held by one root, free memory that
    an allocator keeps (and how much of it a call gives back), thread caches, V8 scopes that hoard,
    threads never joined. Several causes at once are all listed; when nothing is lost, that is said.

    Shares are resident bytes and sum up to all that is resident. Which pages were resident is known
    of a core if the kernel wrote it and nothing copied it, or with a file that `map
    --save-residency` wrote before gcore; otherwise mapped bytes are shown, and said to be."""
    # Before the heaps are read: reading makes pages of files resident.
    pages = residency(session, args.residency)
    accounting = account(session, pages)
    found = findings(session, accounting, lambda store: _free_memory(session, store, pages))
    body: dict[str, object] = {
        **totals_json(accounting),
        "residency": accounting.source,
        "rss": accounting.rss,
        "swapped": accounting.swapped,
        "reserved": [{"of": printable(one.owner) or None, "bytes": one.bytes} for one in accounting.reserved],
        "heuristics": conventions_json(session, "auto"),
        "shares": shares_json(accounting),
        "allocators": [_store(store) for store in accounting.stores],
        "unread": unread_memory(session).json(),
        "notes": [*notes(session), *kernel_notes(session)],
        "kernel": kernel_json(session),
        "managed": [one.json() for one in accounting.native],
        "findings": [finding.json() for finding in found],
    }
    lines = partial(text, session, accounting, found)
    warnings = warnings_of(session, unread_memory(session).is_most)
    return Plain(session, "verdict", body, lines, answer_status(session), warnings, accounting.warnings)


def totals_json(accounting: Accounting) -> dict[str, object]:
    return {"resident": accounting.total if accounting.known else None, "mapped": None if accounting.known else accounting.total}


def shares_json(accounting: Accounting) -> list[dict[str, object]]:
    return [_share(share, accounting.total) for share in accounting.shares]


def _free_memory(session: Session, store: Store, pages: Presence) -> FreeMemory:
    from findleaks.audit.pages import measure_free  # only needed where an allocator keeps much

    return measure_free(session, store.allocator, store.arenas, pages)


def _share(share: Share, total: int) -> dict[str, object]:
    made: dict[str, object] = {"share": share.sort, "of": share.of or None, "bytes": share.bytes}
    made["percent"] = round(100 * share.bytes / total, 2) if total else 0.0
    made.update((name, value) for name, value in fields(share, "count", "detail").items() if value)
    if share.parts:
        made["largest"] = [
            {**({"address": hex(part.address)} if part.address else {}), "name": part.name or None, "bytes": part.bytes}
            for part in share.parts
        ]
    return made


def _store(store: Store) -> dict[str, object]:
    return {
        **fields(store.allocator, "name", "version", "where"),
        **fields(store, "in_use", "cached", "kept"),
        "metadata": store.own,
        "not_resident": store.absent,
        "arenas": [
            {
                "name": arena.arena,
                **fields(arena, "in_use", "cached", "free", "spare"),
                "metadata": arena.own,
                "mapped": arena.mapped,
            }
            for arena in store.arenas
        ],
    }
