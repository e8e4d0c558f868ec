"""verify: what walking tcmalloc does not look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Problem
from findleaks.graph.base import Blocks

if TYPE_CHECKING:
    from findleaks.allocators.tcmalloc.instance import Tcmalloc


def verify(one: Tcmalloc, blocks: Blocks) -> Iterator[Optional[Problem]]:
    """See Allocator.verify."""
    return iter(())
