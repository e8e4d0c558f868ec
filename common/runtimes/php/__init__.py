"""Read PHP (8.1 to 8.4): objects by class, arrays by length, strings, the collector's counters.

PHP's values are blocks of Zend's memory manager (allocators/zend)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.runtimes.directory import ONLY_IN
from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

HEAP = ManagedHeap(ONLY_IN[__name__], "PHP", "zend-mm")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find PHP; see base.Finder."""
    from findleaks.allocators.zend.instance import ZendHeap
    from findleaks.runtimes.php.instance import Php

    heaps = [one for one in directory.allocators if isinstance(one, ZendHeap)]
    return [Php(target, engine, directory, heaps)] if heaps else []
