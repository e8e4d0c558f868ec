"""Patterns of unused words that are made when a loop of the engine first needs them.

A loop gets a table with the numbers of patterns. If it needs a pattern that does not exist yet, it
replaces NOT_MADE by WANTED. The caller makes the pattern, and runs the loop again."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.target.elf import occurrences

NOT_MADE, WANTED = 255, 254
"""Values in a table. NOT_MADE: the pattern does not exist yet. WANTED: it does not exist yet, and a
block needs it."""

ROW = 64  # elements of a row of a table


def make_wanted(table: bytearray, make: Callable[[int, int], int]) -> bool:
    """Make the patterns that are wanted in a table. Return whether there were any.

    `make` takes the numbers of a row and of an element in it, and returns the pattern's number."""
    if WANTED not in table:
        return False
    for at in occurrences(bytes(table), bytes([WANTED])):
        table[at] = make(*divmod(at, ROW))
    return True
