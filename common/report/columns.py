"""The width of text output: the width of the terminal; unlimited for a file or a pipe."""

from __future__ import annotations

import os

LEAST = 80  # fewest columns of a table, however narrow the terminal
UNCUT = 1_000_000  # columns of output to a file or pipe: nothing is cut or wrapped


def terminal_columns(wanted: str = "") -> int:
    """Return the number of columns of standard output. `wanted`: the user's setting, as in the
    variable COLUMNS; "" or "0": not set."""
    if wanted.isdecimal() and int(wanted[:9]) > 0:
        return max(LEAST, int(wanted[:9]))
    try:
        return max(LEAST, os.get_terminal_size(1).columns or 100)
    except OSError:
        return UNCUT
