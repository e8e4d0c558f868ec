"""The bucket allocators of APR-util (apr_bucket_alloc_create), from which Apache httpd takes the
buckets of requests and responses.

A bucket allocator takes nodes from an allocator of APR, and divides them. buckets.py describes the
structures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_modules

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Blocks, Engine
    from findleaks.target.base import Target

NAME = "apr-buckets"


def find_nested(target: Target, engine: Engine, blocks: Blocks, is_leaked: Callable[[int], bool]) -> Sequence[Allocator]:
    """Find the bucket allocators of a process. See directory.find_nested."""
    if target.arch.word != 8:
        return []
    from findleaks.allocators.aprbuckets.buckets import find_lists
    from findleaks.allocators.aprbuckets.instance import BucketAllocators

    lists = find_lists(target, engine, blocks)
    return [BucketAllocators(target, find_modules(target, ONLY_IN[__name__])[0], lists)] if lists else []
