"""The pool resources of libstdc++ (std::pmr::unsynchronized_pool_resource and
synchronized_pool_resource).

A pool resource takes chunks from another memory resource, such as malloc, and divides them into
blocks of equal size. resources.py describes the structures.

libstdc++ is in most processes with C++. Therefore the names of the functions that other files
import are searched first. Memory is searched only if one of these files uses a pool resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_modules

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Blocks, Engine
    from findleaks.target.base import Module, Target

NAME = "std::pmr"
_IMPORTED = b"synchronized_pool_resource"
_MOST = 64 << 20  # bytes of the names of imported functions, and what precedes them in a file


def find_nested(target: Target, engine: Engine, blocks: Blocks, is_leaked: Callable[[int], bool]) -> Sequence[Allocator]:
    """Find the pool resources of a process. See directory.find_nested."""
    own = find_modules(target, ONLY_IN[__name__])
    if target.arch.word != 8 or not any(_uses_pools(target, module) for module in target.modules() if module not in own):
        return []
    from findleaks.allocators.pmr.instance import PoolResources
    from findleaks.allocators.pmr.nested import place_resources
    from findleaks.allocators.pmr.resources import find_resources

    every = ((module, find_resources(target, engine, module, blocks)) for module in own)
    found = [(module, place_resources(target, blocks, resources, is_leaked)) for module, resources in every]
    # A resource in the blocks of another one is a nested allocator of its own.
    depths = [(module, resources, depth) for module, resources in found for depth in sorted({one.depth for one in resources})]
    return [
        PoolResources(target, module, [one for one in resources if one.depth == depth], blocks, engine)
        for module, resources, depth in depths
    ]


def _uses_pools(target: Target, module: Module) -> bool:
    """Whether a file imports a function of pool resources. The names of imported functions are in
    its first segment."""
    region = next((one for one in target.regions() if one.start <= module.start < one.end), None)
    end = min(region.end, module.start + _MOST) if region is not None else 0
    return any(bytes(piece.data).find(_IMPORTED) >= 0 for piece in target.pieces(module.start, end))
