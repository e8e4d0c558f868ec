"""The option --limit, which is the same in all commands that print rows.

If the user passes --limit, it applies to text and JSON, and 0 means all. Otherwise text has about
one screen of rows, and JSON has all rows. If each row takes a search, JSON is limited as well."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional, TypeVar, Union

from findleaks.arg_types import parse_count

Row = TypeVar("Row")


def add_limit(parser: argparse.ArgumentParser, rows: str, default: Union[int, str], searched: bool = False) -> None:
    """Add --limit. `rows`: what is counted ("groups"). `default`: number of rows of text (0: all),
    or a description of the default. `searched`: whether each row takes a search; if so, `default`
    applies to JSON, too."""
    usual = str(default) if default else "all"
    what = f"{rows} to print ({usual}; 0: all)" if searched else f"{rows} to print (text: {usual}; JSON: all); 0: all"
    parser.add_argument("--limit", type=parse_count, default=default if searched else None, help=what)


def in_text(limit: Optional[int], default: int) -> int:
    """Return the number of rows of text (0: all). `limit`: the value of --limit, or None if the
    option is missing."""
    return default if limit is None else limit


def first(rows: Sequence[Row], limit: Optional[int]) -> Sequence[Row]:
    """Return the first `limit` rows; all rows if `limit` is 0 or None."""
    return rows[:limit] if limit else rows
