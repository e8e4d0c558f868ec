"""Where AddressSanitizer's shadow lies."""

from __future__ import annotations

from findleaks.target.arch import Arch
from findleaks.target.base import Range

SHADOWS = {"x86-64": 0x7FFF8000, "AArch64": 1 << 36}
"""By architecture: kDefaultShadowOffset64, kAArch64_ShadowOffset64 (compiler-rt/lib of LLVM 12 to
19: asan/asan_mapping.h). The shadow begins there: one byte for eight of the address space."""


def shadow(arch: Arch) -> Range:
    """Addresses of the shadow, with a page below it for negative offsets."""
    offset = SHADOWS[arch.name]
    return Range(offset - arch.page, offset + arch.top // 8)
