"""Explain large shares of the memory that have no finding, such as reachable blocks.

A process may be healthy although such a share is large, so it is a note and not a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.audit.accounting import Accounting, Share
from findleaks.audit.findings.figures import BlockFigures
from findleaks.audit.findings.large_shares import find_largest_data_file, private_bytes
from findleaks.audit.findings.retainer_sentences import describe_field, describe_shared_part
from findleaks.audit.findings.root_groups import describe_streams, is_most_of
from findleaks.audit.findings.significance import LEAST, PART, denominator
from findleaks.audit.findings.thread_stacks import describe_threads
from findleaks.engine.terms import Kind
from findleaks.formatting import blocks, shorten, size, some
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.finding import OF_MAPPINGS, Finding
from findleaks.session import Session
from findleaks.target.modules import DELETED

# Fewest bytes that are explained: of blocks, and of another share
LEAST_BLOCKS, LEAST_SHARE = 256 << 10, 1 << 20
NAMED, MAX_SEARCHED = 0.25, 16 << 20
"""A root is named if it retains this fraction of the reachable blocks. It is searched for only if
these have at most MAX_SEARCHED bytes."""

_BELOW = f"not a problem, because it is less than {size(LEAST)}"

_REASONS = {
    ShareSort.KEPT: ("kept", "free memory of {}", _BELOW),
    ShareSort.CACHED: ("thread-caches", "thread caches of {}", _BELOW),
    ShareSort.METADATA: ("", "metadata of {}", "headers and padding of blocks"),
    ShareSort.STACKS: ("thread-stacks", "stacks of threads", "`stacks` shows the calls"),
    ShareSort.UNJOINED: ("unjoined-threads", "stacks of threads that were never joined", "not a problem, because there are fewer than ten"),
    ShareSort.CACHED_STACKS: ("", "stacks of ended threads", "libc uses them for new threads"),
    ShareSort.LEAKED_MAPPINGS: ("leaked-mappings", "mappings that nothing refers to", f"perhaps in use, and less than {size(LEAST)}"),
    ShareSort.UNKNOWN: ("unknown-owner", "unattributed memory", _BELOW),
}
"""For each kind of share: the finding about it, what it is ("{}": the owner), and why it may have
no finding."""


_MOSTLY_UNTOUCHED = (ShareSort.STACKS, ShareSort.UNJOINED, ShareSort.CACHED_STACKS)
"""Shares that are not explained if residency is unknown, because most of their pages may never have
been touched."""


def has_unexplained_blocks(accounting: Accounting, figures: BlockFigures, found: Sequence[Finding]) -> bool:
    """Whether reachable blocks are a tenth of the private memory, and no finding is about most of
    them."""
    explained = sum(one.bytes for one in found if one.of_blocks or one.kind.startswith("held"))
    if 2 * explained >= figures.bytes_of(Kind.REACHABLE):
        return False
    reached = figures.of(Kind.REACHABLE)
    weight = reached.bytes if reached.resident is None else reached.resident
    return weight >= max(LEAST_BLOCKS, PART * _whole(accounting))


def explain_shares(session: Session, accounting: Accounting, found: Sequence[Finding]) -> Iterator[str]:
    """Yield a sentence about each kind of private memory that is a tenth of it and has no finding.
    Yields none if there are no findings at all: then the heap was not read."""
    if not found:
        return
    figures = BlockFigures(session, accounting.known)
    if has_unexplained_blocks(accounting, figures, found):
        yield _describe_blocks(session, figures)
    kinds = {one.kind for one in found}
    kinds |= {"thread-stacks"} if "deep-stack" in kinds else set()
    kinds |= {"leaked-mappings"} if "possibly-leaked-mappings" in kinds else set()
    # Such mappings have no known owner in the table.
    mapped = sum(one.bytes for one in found if one.kind in OF_MAPPINGS)
    unknown = accounting.share(ShareSort.UNKNOWN)
    kinds |= {"unknown-owner"} if unknown is not None and mapped and unknown.bytes - mapped < LEAST else set()
    judged = [one for one in accounting.shares if accounting.known or one.sort not in _MOSTLY_UNTOUCHED]
    large = [one for one in judged if one.bytes >= max(LEAST_SHARE, PART * _whole(accounting))]
    managed = [one for one in large if one.sort == ShareSort.RUNTIME and not (one.are_stacks and "thread-stacks" in kinds)]
    if managed and not any(command.startswith("runtime") for one in found for command in one.commands):
        yield f"{some([_amount(one, one.of) for one in managed])}: `runtime` shows the contents"
    for one in large:
        kind, what, reason = _REASONS.get(one.sort, ("", "", ""))
        if reason and kind not in kinds and "unread-memory" not in kinds:
            where = describe_threads(session, one.count) if one.sort == ShareSort.STACKS else ""
            reason = f"{where}. {reason}" if where else reason
            yield f"{_amount(one, what.format(one.of))}: {reason}"
    if "mapped-file" not in kinds:
        yield from _describe_data_file(session, accounting)


def _describe_data_file(session: Session, accounting: Accounting) -> Iterator[str]:
    """Yield a sentence about a large file with writable mappings. Other files need no sentence,
    because the kernel can drop their pages and read them again."""
    file = find_largest_data_file(session, accounting) if accounting.known else None
    if file is None or not any(region.writable for region in file.regions):
        return
    name, deleted = shorten(file.name.removesuffix(DELETED), 200), file.name.endswith(DELETED)
    reason = "it is mapped shared and writable, and the kernel writes changed pages to the file before it drops them"
    if file.private_writable:
        reason = "it is mapped private and writable, and pages that were written to are copies, which only this process has"
    elif deleted:
        reason += "; the file keeps its space until it is unmapped"
    yield f"{'deleted ' * deleted}file {name} ({size(file.bytes)}): {reason}"


def _whole(accounting: Accounting) -> int:
    """Return the number of bytes that a share is compared with."""
    return private_bytes(accounting) if accounting.known else denominator(accounting)


def _amount(share: Share, what: str) -> str:
    return f"{what} ({size(share.bytes)})"


def _describe_blocks(session: Session, figures: BlockFigures) -> str:
    """Describe the reachable blocks. What retains most of them is named only in a small heap, where
    it is found quickly."""
    reached = figures.of(Kind.REACHABLE)
    sentence = f"{reached.amount} in {blocks(reached.blocks)} are in use and reachable: `roots` shows what retains them."
    if reached.bytes > MAX_SEARCHED:
        return sentence
    from findleaks.audit.top_retainer import find_top_retainer

    top = find_top_retainer(session)
    if top is not None and top.totals.bytes >= NAMED * reached.bytes:
        sentence += f" {top.owner.label} {top.owner.retains} {size(top.totals.bytes)}."
        sentence += f" {describe_field(top.field)}" if top.field is not None and top.field.what else ""
        sentence += describe_streams(top.owner)
    elif top is not None and top.groups and is_most_of(top.groups[0], top.reached):
        sentence += f" {top.groups[0].label} {top.groups[0].retain} {size(top.groups[0].totals.bytes)}."
    return sentence + describe_shared_part(session, NAMED)[0]
