"""Thresholds that decide which amounts of memory findings report."""

from __future__ import annotations

from findleaks.audit.accounting import Accounting
from findleaks.results.share_sort import ShareSort

LEAST, PART = 8 << 20, 0.10
"""Free, unattributed or unread memory is reported if it has at least LEAST bytes, and at least the
fraction PART of `denominator`."""


def is_significant(amount: int, accounting: Accounting) -> bool:
    """Whether this number of bytes is enough for a finding."""
    return is_large(amount, denominator(accounting))


def is_large(amount: int, whole: int) -> bool:
    """Whether `amount` bytes of `whole` bytes are enough for a finding."""
    return amount >= LEAST and amount >= PART * whole


def denominator(accounting: Accounting) -> int:
    """Return the number of bytes that fractions refer to: all resident bytes.

    If residency is unknown, it is the number of mapped bytes without stacks and files, because most
    of their pages may never have been touched."""
    if accounting.known:
        return accounting.total
    return sum(
        share.bytes
        for share in accounting.shares
        if share.sort not in (ShareSort.STACKS, ShareSort.UNJOINED, ShareSort.CACHED_STACKS, ShareSort.FILES)
    )


def denominator_without_files(accounting: Accounting) -> int:
    """Return `denominator` without mapped files: the core of a JVM contains 120 MiB of class
    archive.

    If residency is unknown, the parts of managed heaps that contain no object do not count either.
    A JVM maps its whole initial heap, of which a small program uses a few megabytes."""
    if accounting.known:
        return denominator(accounting) - sum(share.bytes for share in accounting.shares if share.sort == ShareSort.FILES)
    return denominator(accounting) - sum(share.unused for share in accounting.shares)
