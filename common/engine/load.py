"""Choose the engine: the C engine if its library loads and supports the target, else Python's."""

from __future__ import annotations

import os
import sys

from findleaks.engine.contract import Engine
from findleaks.engine.native.library import StaleLibrary, library
from findleaks.target.arch import X86_64, Arch

# Environment variables.
PURE = "FINDLEAKS_PURE"  # 1 forces the Python engine
THREADS = "FINDLEAKS_THREADS"  # number of threads that the C engine uses
_MOST_THREADS = 8  # maximum without FINDLEAKS_THREADS: more threads hardly read memory faster


def missing_native(arch: Arch = X86_64) -> str:
    """Return why the C engine for such targets is unusable and what to do, in one line; "" if it is
    usable or disabled."""
    if os.environ.get(PURE) == "1":
        return ""
    try:
        library(word=arch.word, byteorder=arch.byteorder)
    except StaleLibrary as error:
        return f"without its C engine, some 30 times slower, because {error}: run make native, or install findleaks again"
    except OSError:
        return "without its C engine, some 30 times slower: install a C compiler (gcc) and then findleaks again, or run make native"
    return ""


def stale_native(arch: Arch = X86_64) -> bool:
    """Return whether the C engine for such targets is not used because it was built from other
    sources."""
    try:
        library(word=arch.word, byteorder=arch.byteorder)
    except StaleLibrary:
        return os.environ.get(PURE) != "1"
    except OSError:
        pass
    return False


def threads() -> int:
    """Return FINDLEAKS_THREADS if it is a number of at least 1. Otherwise return the number of CPUs
    that this process may use, up to a limit."""
    asked = os.environ.get(THREADS, "")
    if asked.isdecimal() and int(asked):
        return min(int(asked), 64)
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def load(arch: Arch, pure: bool = False) -> Engine:
    """Return the engine for this architecture. `pure` or FINDLEAKS_PURE=1 selects the Python
    engine."""
    serves = sys.byteorder == "little" and sys.maxsize > 1 << 32  # this machine
    if serves and not pure and os.environ.get(PURE) != "1":
        try:
            loaded = library(word=arch.word, byteorder=arch.byteorder)
        except OSError:
            pass  # not built, or for another machine: use the slower Python engine
        else:
            from findleaks.engine.native.engine import NativeEngine

            return NativeEngine(loaded, arch, threads())
    from findleaks.engine.reference.engine import PureEngine  # import only the engine that is used

    return PureEngine(arch)
