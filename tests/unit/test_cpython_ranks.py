"""The object by which a cycle of Python objects is named: ranks of types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from findleaks.runtimes.cpython.ranks import SUPPORT, type_ranks
from findleaks.runtimes.cpython.types import HEAP_TYPE

FOREIGN = ("_asyncio.Task", "multidict._multidict.MultiDict")
CLASSES = ("__main__.Owner", "__main__.Part", "shop.Order")
OWN = ("generator", "module", "type", "bytearray")


def sort_by_rank(*names: str) -> list[str]:
    """Return the names, beginning with the highest rank."""
    order = sorted(names, key=lambda name: name not in FOREIGN)  # types of extension modules have the first numbers
    known: Any = SimpleNamespace(
        foreign=sum(name in FOREIGN for name in names), flags=[HEAP_TYPE if name in FOREIGN + CLASSES else 0 for name in order]
    )
    ranks = type_ranks(known, order)
    assert min(ranks) >= 1
    return [name for _, name in sorted(zip(ranks, order), reverse=True)]


def test_a_class_ranks_before_its_parts() -> None:
    wanted = [*CLASSES, *FOREIGN, *sorted(OWN), *reversed(SUPPORT)]
    assert sort_by_rank(*wanted) == wanted
    assert sort_by_rank(*reversed(wanted)) == wanted


def test_types_of_one_name_have_one_rank() -> None:
    known: Any = SimpleNamespace(foreign=0, flags=[HEAP_TYPE, HEAP_TYPE, 0])
    first, second, other = type_ranks(known, ["shop.Order", "shop.Order", "dict"])
    assert first == second > other
