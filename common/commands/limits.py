"""--limit, which means the same in every command that prints rows.

Given, it counts for text and JSON alike, and 0 stands for all rows. Not given, text has as many rows as a screen holds, and JSON all
of them, but for commands whose rows are searched for one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional, TypeVar, Union

from findleaks.arg_types import count_word

Row = TypeVar("Row")


def add_limit(parser: argparse.ArgumentParser, rows: str, default: Union[int, str], searched: bool = False) -> None:
    """The option itself. `rows` says what is counted ("groups"); `default` is for text: a number, 0 for all, or words. JSON has all
    rows where nothing is given; where they are `searched` for, one by one, it has `default` of them, too."""
    usual = str(default) if default else "all"
    what = f"{rows} to print ({usual}; 0: all)" if searched else f"{rows} to print (text: {usual}; JSON: all); 0: all"
    parser.add_argument("--limit", type=count_word, default=default if searched else None, help=what)


def in_text(limit: Optional[int], default: int) -> int:
    """How many rows text has, where `limit` is what the user gave; 0: all."""
    return default if limit is None else limit


def first(rows: Sequence[Row], limit: Optional[int]) -> Sequence[Row]:
    """As many of the rows; 0 and None: all."""
    return rows[:limit] if limit else rows
