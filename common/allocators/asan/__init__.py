"""AddressSanitizer's allocator without symbols, in a library or linked into the program.

x86-64: LLVM 12 to 19, GCC 11 to 16. AArch64: LLVM 16 to 18, GCC 14 to 16. layout.py has the
sources. HWAddressSanitizer, which has the same allocator with other headers, is reported but not
read.

This module is imported for every process. It only checks whether the shadow is mapped, whether the
fixed end of the allocator's address range is mapped, and whether pointers may have tags."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.asan.shadow_memory import SHADOWS
from findleaks.allocators.base import Allocator
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import region_at

NAME = "AddressSanitizer"
SPACE_ENDS = (0x540000000000, 0x640000000000)
"""kAllocatorSpace + kAllocatorSize (asan/asan_allocator.h). The first value is that of LLVM 18, GCC
14 and later, the second that of earlier releases."""


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the AddressSanitizers of a process (see base.Finder)."""
    regions = target.regions()
    shadow = SHADOWS.get(target.arch.name, 0)
    if not shadow or not (target.tagged or any(region_at(regions, address) for address in (shadow, *SPACE_ENDS))):
        return []
    from findleaks.allocators.asan.instance import make

    return make(target, engine)
