"""Find the function whose check of _FORTIFY_SOURCE failed.

Programs that are compiled with _FORTIFY_SOURCE call functions such as __sprintf_chk, with the size
of the buffer as an additional argument. glibc's message does not name the function. Some of these
functions jump to __chk_fail, so they have no frame: the call in the program shows the name."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.target.arch import X86_64
from findleaks.target.imports import name_import
from findleaks.unwind.stacks import NamedFrame

OVERFLOW = "*** buffer overflow detected ***"  # the start of glibc's message
_SUFFIX = "_chk"


def find_failed_check(tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    """Return the name of the function without its affixes: "sprintf"; "" if it is unknown.
    `frames`: the frames of the thread, as many as the tracer has, the innermost first."""
    for frame in frames:
        name = _name_checked(frame.function)
        if name:
            return name
    level = next((at for at, frame in enumerate(frames) if not frame.module.startswith("libc")), 0)
    if not level or level >= len(tracer.frames) or tracer.target.arch.name != X86_64.name:
        return ""
    try:
        slot = tracer.called_slot(level)
    except CapstoneMissing:
        return ""
    module = next((one for one in tracer.target.modules() if slot and one.start <= slot < one.end), None)
    return _name_checked(name_import(tracer.target, module, slot)) if module is not None else ""


def _name_checked(function: str) -> str:
    return function.lstrip("_")[: -len(_SUFFIX)] if function.startswith("__") and function.endswith(_SUFFIX) else ""
