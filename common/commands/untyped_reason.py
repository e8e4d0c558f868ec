"""Text of the reason why a block has no type."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.formatting import number, printable

SHOWN = 3  # Most types that are named.
LONGEST = 60  # Most characters of a name.


def describe_reason(reason: str, candidates: Sequence[str]) -> str:
    """Return a reason with the types that the block may have: "the pointer is void *, perhaps struct
    line or struct point"."""
    names = [printable(one, LONGEST) for one in candidates[:SHOWN]]
    if len(candidates) > SHOWN:
        return f"{reason}, perhaps {', '.join(names)} or {number(len(candidates) - SHOWN)} others"
    *first, last = names or [""]
    return f"{reason}, perhaps {', '.join(first)}{' or ' if first else ''}{last}" if names else reason
