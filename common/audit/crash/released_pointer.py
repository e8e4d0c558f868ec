"""Find the pointer that a program passed to free() or realloc() when the process ended in it.

The pointer is computed from the code of the caller before the call (see value_origin.py). The
caller may also call a function that jumps to free() with the same argument, such as operator
delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.audit.crash.imported_calls import name_called
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.registers import RDI
from findleaks.target.arch import X86_64
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_FUNCTIONS = {"free": "free", "cfree": "free", "__libc_free": "free", "realloc": "realloc", "__libc_realloc": "realloc"}
"""Public names of functions, by the names of their symbols."""

_INNERMOST = 16  # the function must be among this many innermost frames
_MOST_JUMPS = 4  # maximum number of jumps from the called function to free()


class ReleasedPointer(NamedTuple):
    """The argument of a call of free() or realloc(). `function`: "free" or "realloc". `value`: the
    pointer. `level`: the index of the caller's frame."""

    function: str
    value: int
    level: int
    origin: Optional[Origin]


def find_released_pointer(tracer: Tracer, unwinder: Unwinder, names: Sequence[NamedFrame]) -> Optional[ReleasedPointer]:
    """Return the pointer; None if the thread is not in free() or realloc(), or if the pointer is
    not certain. `names`: the names of the tracer's frames."""
    if tracer.target.arch.name != X86_64.name:
        return None
    found = [at for at, one in enumerate(names[:_INNERMOST]) if one.function in _FUNCTIONS]
    caller = found[-1] + 1 if found else 0
    try:
        # In musl, free() is a jump to a function without a name and without an unwind table.
        function = names[caller - 1].function if found else ""
        extent = unwinder.extent(tracer.frames[caller - 1].call) if found else None
        if extent is None:
            levels = range(1, min(_INNERMOST, len(tracer.frames)))
            caller = next((at for at in levels if unwinder.extent(tracer.frames[at].call) is not None), 0)
            function = name_called(tracer, caller) if caller else ""
            if function not in _FUNCTIONS:
                return None
        elif caller >= len(tracer.frames) or not _reaches(tracer, tracer.called_function(caller), extent.start):
            return None
        value = tracer.value(caller, RDI)
        if value is None:
            return None
        return ReleasedPointer(_FUNCTIONS[function], value, caller, tracer.origin(caller, RDI, value))
    except CapstoneMissing:
        return None


def _reaches(tracer: Tracer, called: int, function: int) -> bool:
    """Whether the function at `called` is `function`, or jumps to it with the same first
    argument."""
    for _ in range(_MOST_JUMPS):
        if not called or called == function:
            return called == function
        called = tracer.reader.jump_from(called, RDI)
    return False
