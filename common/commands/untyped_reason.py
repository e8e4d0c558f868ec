"""Text of the types that a block without a type may have."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.formatting import number, printable

SHOWN = 3  # maximum number of types that are named
LONGEST = 60  # maximum number of characters of a name


def join_candidates(names: Sequence[str]) -> str:
    """Return names of types as text: "struct line, struct point or 14 others"; "" for none."""
    shown = [printable(one, LONGEST) for one in names[:SHOWN]]
    left = len(names) - len(shown)
    *first, last = [*shown, f"{number(left)} {'other' if left == 1 else 'others'}"] if left else shown or [""]
    return f"{', '.join(first)} or {last}" if first else last
