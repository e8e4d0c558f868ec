"""The steps of a chain of references, and the choice of the steps that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.audit.address_info import AddressDescription
from findleaks.results import references

STEPS = 25  # references of a chain that are shown if the caller gives no limit
LAST = 4  # steps that are shown at the end of a shortened chain, such as a list of a million nodes


@dataclass(frozen=True)
class Step:
    """A reference to the next block or object: a word that points to byte `offset` of it."""

    origin: str
    address: int  # the address of the word; 0 if the word is not in memory
    value: int  # The value of the word.
    offset: int
    answer: Optional[AddressDescription]
    disguise: str = ""  # How the pointer is disguised; "" for a plain pointer.

    def result(self) -> references.Step:
        return references.Step(
            self.origin,
            self.address or None,
            self.value,
            self.offset,
            interior=self.offset != 0,
            disguise=self.disguise or None,
            place=self.answer.result() if self.answer is not None else None,
        )


def select_links(chain: Sequence[int], limit: int) -> tuple[list[tuple[int, int]], int, int]:
    """Return the links to show, the number of links left out, and the number of links that are
    shown after the gap. `limit`: maximum number of links to show (0: all)."""
    links = list(zip(chain, chain[1:]))
    if limit <= 0 or len(links) <= limit:
        return links, 0, 0
    last = min(LAST, limit - 1)
    first = limit - last
    return [*links[:first], *links[len(links) - last :]], len(links) - limit, last
