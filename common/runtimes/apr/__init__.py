"""Read the pools of the Apache Portable Runtime (APR 1.5 to 1.7), by tag.

A pool takes nodes from malloc or mmap, and frees all of its memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.images import find_images
from findleaks.runtimes.directory import ONLY_IN

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find the pools in a process that loaded libapr; see base.Finder."""
    from findleaks.runtimes.apr.instance import Apr
    from findleaks.runtimes.apr.pools import find_root

    if target.arch.word != 8:
        return []
    images = [image for image in find_images(target) if image.name.startswith(ONLY_IN[__name__])]
    found = ((image, find_root(target, image)) for image in images)
    return [Apr(target, engine, directory, image, root) for image, root in found if root]
