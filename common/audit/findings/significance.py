"""Thresholds of findings: which amounts are worth a sentence."""

from __future__ import annotations

from findleaks.audit.accounting import Accounting

LEAST, PART = 8 << 20, 0.10
"""Free, unowned or unread memory needs LEAST bytes that are also PART of `denominator`."""


def is_significant(amount: int, accounting: Accounting) -> bool:
    return amount >= LEAST and amount >= PART * denominator(accounting)


def denominator(accounting: Accounting) -> int:
    """Denominator of fractions: resident bytes; if unknown, mapped bytes without stacks and files,
    most pages of which were never touched."""
    if accounting.known:
        return accounting.total
    return sum(share.bytes for share in accounting.shares if share.sort not in ("stacks", "unjoined", "cached-stacks", "files"))


def without_files(accounting: Accounting) -> int:
    """`denominator` without mapped files: cores of a JVM have 120 MiB of its class archive."""
    files = sum(share.bytes for share in accounting.shares if share.sort == "files") if accounting.known else 0
    return denominator(accounting) - files
