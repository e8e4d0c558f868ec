"""Chooses the engine: the C kernel where its library loads and fits the target, else the twin."""

from __future__ import annotations

import os
import sys

from findleaks.engine.contract import Engine
from findleaks.engine.kernel.library import StaleLibrary, library
from findleaks.target.arch import X86_64, Arch

# Environment variables.
PURE = "FINDLEAKS_PURE"  # 1 forces the twin
THREADS = "FINDLEAKS_THREADS"  # threads that the kernel runs on
_MOST_THREADS = 8  # by default: memory is not read much faster by more


def missing_kernel(arch: Arch = X86_64) -> str:
    """Why the C kernel for such targets is unusable and what to do, in one line; "" if usable or
    switched off."""
    if os.environ.get(PURE) == "1":
        return ""
    try:
        library(word=arch.word, byteorder=arch.byteorder)
    except StaleLibrary as error:
        return f"without its C kernel, some 30 times slower, as {error}: run make kernel, or install findleaks again"
    except OSError:
        return "without its C kernel, some 30 times slower: install a C compiler (gcc) and then findleaks again, or run make kernel"
    return ""


def stale_kernel(arch: Arch = X86_64) -> bool:
    """Whether the C kernel for such targets is left unused as it was built from other sources."""
    try:
        library(word=arch.word, byteorder=arch.byteorder)
    except StaleLibrary:
        return os.environ.get(PURE) != "1"
    except OSError:
        pass
    return False


def threads() -> int:
    """As FINDLEAKS_THREADS says, if that is a number from 1 up; else the CPUs of this process."""
    asked = os.environ.get(THREADS, "")
    if asked.isdecimal() and int(asked):
        return min(int(asked), 64)
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def load(arch: Arch, pure: bool = False) -> Engine:
    """`pure` or FINDLEAKS_PURE=1 asks for the twin."""
    serves = sys.byteorder == "little" and sys.maxsize > 1 << 32  # this machine
    if serves and not pure and os.environ.get(PURE) != "1":
        try:
            loaded = library(word=arch.word, byteorder=arch.byteorder)
        except OSError:
            pass  # not built, or for another machine: the twin gives the same answers, slower
        else:
            from findleaks.engine.kernel.engine import KernelEngine

            return KernelEngine(loaded, arch, threads())
    from findleaks.engine.python.engine import PureEngine  # one engine is imported, not both

    return PureEngine(arch)
