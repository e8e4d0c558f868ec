"""Find out why a program with musl executed hlt, the instruction with which a_crash() of musl ends
a process. The allocator executes it, and also __stack_chk_fail(), asctime() and others."""

from __future__ import annotations

import os
from collections.abc import Sequence

from findleaks.audit.crash.imported_calls import name_called
from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame

ALLOCATOR, STACK, UNKNOWN = "allocator", "stack", "unknown"
_PUBLIC = ("malloc", "calloc", "realloc", "free", "aligned_alloc", "memalign", "posix_memalign", "malloc_usable_size")
_FUNCTIONS = {
    **dict.fromkeys((*_PUBLIC, "__libc_malloc", "__libc_malloc_impl", "__libc_realloc", "__libc_free"), ALLOCATOR),
    "__stack_chk_fail": STACK,
}
_INNERMOST = 4  # one of these frames must be, or call, such a function


def find_musl_check(session: Session, tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    """Return ALLOCATOR or STACK if such a function executed hlt; UNKNOWN if a function without a
    name did, in a program that contains musl; otherwise "". `frames`: the names of the tracer's
    frames. libc.so exports the other functions with hlt: one without a name is the allocator's."""
    if not frames or not any(one.name.startswith("musl") for one in session.directory.allocators):
        return ""
    inner = frames[0]
    names = [os.path.basename(one.path) for one in session.target.modules()]
    is_static = len([name for name in names if name and not name.startswith(("linux-", "[v"))]) == 1
    if not (is_static or inner.module.startswith(("libc.", "ld-musl"))):
        return ""
    found = [one.function for one in frames[:_INNERMOST]]
    try:
        found += [name_called(tracer, level) for level in range(1, min(_INNERMOST, len(tracer.frames)))]
    except CapstoneMissing:
        pass
    unnamed = UNKNOWN if is_static else ALLOCATOR
    return next((_FUNCTIONS[name] for name in found if name in _FUNCTIONS), "" if inner.function else unnamed)
