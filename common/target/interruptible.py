"""Iteration that ends when the user presses Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from findleaks.errors import Interrupted
from findleaks.target.base import Target

_Item = TypeVar("_Item")


def interruptible(target: Target, items: Iterable[_Item], every: int = 1) -> Iterator[_Item]:
    """Yield the items.
    Raises Interrupted if the user has asked to stop. Polls before the first item, and after every
    `every` items."""
    for number, item in enumerate(items):
        if number % every == 0 and target.is_interrupted():
            raise Interrupted
        yield item
