"""--limit, the same in every command that prints rows. Given, it applies to text and JSON; 0: all.
Not given, text fills about a screen; JSON has all rows, unless they are searched for one by one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional, TypeVar, Union

from findleaks.arg_types import parse_count

Row = TypeVar("Row")


def add_limit(parser: argparse.ArgumentParser, rows: str, default: Union[int, str], searched: bool = False) -> None:
    """Add --limit. `rows` names what is counted ("groups"). `default`: rows of text (0: all), or
    words; also of JSON if rows are `searched` for one by one, else JSON has all."""
    usual = str(default) if default else "all"
    what = f"{rows} to print ({usual}; 0: all)" if searched else f"{rows} to print (text: {usual}; JSON: all); 0: all"
    parser.add_argument("--limit", type=parse_count, default=default if searched else None, help=what)


def in_text(limit: Optional[int], default: int) -> int:
    """Rows of text for the user's `limit` (None: not given). 0: all."""
    return default if limit is None else limit


def first(rows: Sequence[Row], limit: Optional[int]) -> Sequence[Row]:
    """The first `limit` rows. 0 and None: all."""
    return rows[:limit] if limit else rows
