"""Find the function whose check of _FORTIFY_SOURCE failed.

Programs that are compiled with _FORTIFY_SOURCE call functions such as __sprintf_chk, with the size
of the buffer as an additional argument. glibc's message does not name the function. Some of these
functions jump to __chk_fail, so they have no frame: the call in the program shows the name."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.audit.crash.imported_calls import name_called_import
from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.target.arch import X86_64
from findleaks.unwind.stacks import NamedFrame

OVERFLOW = "*** buffer overflow detected ***"  # the start of glibc's message
_SUFFIX = "_chk"
LIBC = ("libc.so", "libc-2")  # beginnings of the names of glibc's file


def find_failed_check(tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    """Return the name of the function without its affixes: "sprintf"; "" if it is unknown.
    `frames`: the frames of the thread, as many as the tracer has, the innermost first."""
    level = next((at for at, frame in enumerate(frames) if not frame.module.startswith(LIBC)), 0)
    # The program calls the outermost of the functions that check: __sprintf_chk may call
    # __vsprintf_chk. In a static program, functions of libc are in the module of the program.
    found = ""
    for frame in frames[: level or len(frames)]:
        name = _name_checked(frame.function)
        if found and not name:
            break
        found = name
    if found:
        return found
    if not level or level >= len(tracer.frames) or tracer.target.arch.name != X86_64.name:
        return ""
    try:
        return _name_checked(name_called_import(tracer, level))
    except CapstoneMissing:
        return ""


def describe_check(function: str) -> str:
    """Return a sentence about the check that failed. __fdelt_chk checks the argument of FD_SET. Old
    versions of glibc print the same message for it as for a buffer."""
    if function == "fdelt":
        return "FD_SET(), FD_CLR() or FD_ISSET() detected this: the file descriptor is negative or too large (see select(2))."
    return f"{function}() detected this: its buffer is too small."


def _name_checked(function: str) -> str:
    """Return the name without its affixes; "" if it is not that of a function that checks. A
    damaged core may contain any text as a name."""
    is_checked = function.startswith("__") and function.endswith(_SUFFIX) and function.isascii() and function.isidentifier()
    return function.lstrip("_")[: -len(_SUFFIX)] if is_checked else ""
