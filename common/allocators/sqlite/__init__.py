"""The lookaside buffers of SQLite's connections.

A connection divides one block of malloc into slots of two sizes, from which it takes small objects,
such as prepared statements. lookaside.py describes the structures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_images

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Blocks, Engine
    from findleaks.target.base import Target

NAME = "sqlite-lookaside"


def find_nested(target: Target, engine: Engine, blocks: Blocks, is_leaked: Callable[[int], bool]) -> Sequence[Allocator]:
    """Find the lookaside buffers of all connections. See directory.find_nested."""
    if target.arch.word != 8:
        return []
    from findleaks.allocators.sqlite.instance import LookasideBuffers
    from findleaks.allocators.sqlite.lookaside import find_buffers

    images = [image for image in find_images(target) if image.name.startswith(ONLY_IN[__name__])]
    found = [(image, find_buffers(target, engine, image, blocks)) for image in images]
    return [LookasideBuffers(target, image, buffers) for image, buffers in found if buffers]
