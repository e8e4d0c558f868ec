"""Thresholds of findings: which amounts of memory are reported."""

from __future__ import annotations

from findleaks.audit.accounting import Accounting
from findleaks.results.share_sort import ShareSort

LEAST, PART = 8 << 20, 0.10
"""Fewest bytes, and least fraction of `denominator`, of free, unattributed or unread memory that is
reported."""


def is_significant(amount: int, accounting: Accounting) -> bool:
    """Whether an amount of memory, in bytes, is reported."""
    return is_large(amount, denominator(accounting))


def is_large(amount: int, whole: int) -> bool:
    """Whether an amount of memory, in bytes, is reported as a part of `whole`."""
    return amount >= LEAST and amount >= PART * whole


def denominator(accounting: Accounting) -> int:
    """Return the denominator of fractions: resident bytes.

    If residency is unknown, mapped bytes without stacks and files, as most of their pages may never
    have been touched."""
    if accounting.known:
        return accounting.total
    return sum(
        share.bytes
        for share in accounting.shares
        if share.sort not in (ShareSort.STACKS, ShareSort.UNJOINED, ShareSort.CACHED_STACKS, ShareSort.FILES)
    )


def denominator_without_files(accounting: Accounting) -> int:
    """Return `denominator` without mapped files: a core of a JVM contains 120 MiB of class
    archive."""
    files = sum(share.bytes for share in accounting.shares if share.sort == ShareSort.FILES) if accounting.known else 0
    return denominator(accounting) - files
