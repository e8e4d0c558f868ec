"""Width of text output: as wide as the terminal, unlimited for a file or a pipe."""

from __future__ import annotations

import os

LEAST = 80  # fewest columns of a table, however narrow the terminal
UNCUT = 1_000_000  # columns where output is no terminal: nothing is cut, a sentence is one line


def terminal_columns(wanted: str = "") -> int:
    """Columns of standard output. `wanted`: the user's setting, as in COLUMNS; "" or "0": none."""
    if wanted.isdecimal() and int(wanted[:9]) > 0:
        return max(LEAST, int(wanted[:9]))
    try:
        return max(LEAST, os.get_terminal_size(1).columns or 100)
    except OSError:
        return UNCUT
