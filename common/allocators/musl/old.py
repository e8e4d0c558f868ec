"""oldmalloc: not read yet."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.graph.base import Engine
from findleaks.target.base import Range, Target


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> list[Allocator]:
    """See base.Finder."""
    return []
