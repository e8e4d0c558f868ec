"""How wide text may be: as wide as the terminal that it goes to, and uncut where it goes into a file or a pipe."""

from __future__ import annotations

import os

LEAST = 80
"""Columns that every table has, however narrow the terminal."""
UNCUT = 1_000_000
"""Columns of what is no terminal: nothing is cut, sentences stay on one line."""


def terminal_columns(wanted: str = "") -> int:
    """Columns for text on standard output. `wanted`: what the user set instead, as COLUMNS has it; "" or "0" if nothing."""
    if wanted.isdecimal() and int(wanted[:9]) > 0:
        return max(LEAST, int(wanted[:9]))
    try:
        return max(LEAST, os.get_terminal_size(1).columns or 100)
    except OSError:
        return UNCUT
