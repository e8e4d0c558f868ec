"""The memory manager of PHP's Zend engine (PHP 7 and 8), read without symbols.

PHP allocates the memory of requests from it (emalloc). The memory manager maps chunks of 2 MiB, and
maps each larger block separately. With USE_ZEND_ALLOC=0, PHP uses malloc instead. In a thread-safe
build, each thread has a heap. layout.py describes the structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_modules
from findleaks.allocators.zend.instance import ZendHeap
from findleaks.allocators.zend.layout import find_places

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Engine
    from findleaks.target.base import Range, Target

NAME = "zend-mm"


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the heaps of PHP's memory manager. See base.Finder."""
    modules = find_modules(target, ONLY_IN[__name__])
    return [ZendHeap(target, engine, modules[0], place) for place in find_places(target)] if modules else []
