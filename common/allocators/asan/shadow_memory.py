"""The address range of AddressSanitizer's shadow."""

from __future__ import annotations

from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import Range

SHADOWS = {X86_64.name: 0x7FFF8000, AARCH64.name: 1 << 36}
"""By architecture: kDefaultShadowOffset64, kAArch64_ShadowOffset64 (compiler-rt/lib of LLVM 12 to
19: asan/asan_mapping.h). The shadow begins there. It has one byte for eight bytes of addresses."""


def shadow(arch: Arch) -> Range:
    """Return the addresses of the shadow, with a page below it for negative offsets."""
    offset = SHADOWS[arch.name]
    return Range(offset - arch.page, offset + arch.top // 8)
