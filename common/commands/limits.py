"""The option --limit, which is the same in all commands that print rows.

If the user gives it, it applies to text and JSON; 0 means all. Otherwise text has about a screen of
rows, and JSON has all rows, except where each row takes a search."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional, TypeVar, Union

from findleaks.arg_types import parse_count

Row = TypeVar("Row")


def add_limit(parser: argparse.ArgumentParser, rows: str, default: Union[int, str], searched: bool = False) -> None:
    """Add --limit. `rows`: what is counted ("groups"). `default`: rows of text (0: all), or words.
    `searched`: each row takes a search, so `default` applies to JSON as well."""
    usual = str(default) if default else "all"
    what = f"{rows} to print ({usual}; 0: all)" if searched else f"{rows} to print (text: {usual}; JSON: all); 0: all"
    parser.add_argument("--limit", type=parse_count, default=default if searched else None, help=what)


def in_text(limit: Optional[int], default: int) -> int:
    """The number of rows of text for the user's `limit` (None: not given). 0: all."""
    return default if limit is None else limit


def first(rows: Sequence[Row], limit: Optional[int]) -> Sequence[Row]:
    """The first `limit` rows; all for 0 and None."""
    return rows[:limit] if limit else rows
