"""GLib's slice allocator (GSlice, up to GLib 2.74), read without symbols.

It divides aligned blocks of posix_memalign ("slabs") into chunks of one size. Since 2.76,
g_slice_alloc calls malloc. slabs.py has the structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.gslice.instance import GSlice
from findleaks.allocators.gslice.slabs import find_places
from findleaks.allocators.images import find_images

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Engine
    from findleaks.target.base import Range, Target

NAME = "GSlice"


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the allocator of each loaded GLib. See base.Finder."""
    images = [image for image in find_images(target) if image.name.startswith(ONLY_IN[__name__])]
    return [GSlice(target, engine, image, place) for image in images for place in find_places(target, engine, image)]
