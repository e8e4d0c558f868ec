"""Find the pointer that a program passed to free() or realloc() when the process ended in it.

The pointer is computed from the code of the caller before the call (see value_origin.py). The
caller may also call a function that jumps to free(), such as operator delete, with its own argument
or with a pointer that it loads (see tail_calls.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.imported_calls import name_called
from findleaks.audit.crash.kept_arguments import Source, find_kept_arguments
from findleaks.audit.crash.tail_calls import Offsets, Passed, find_offsets, follow_jumps, only_jumps_to
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.block_types.naming import STRING_NAMES
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.registers import ARGUMENTS, GENERAL, RDI
from findleaks.target.arch import AARCH64, X86_64
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, without_parameters
from findleaks.value_classes import NamedTuple

_FUNCTIONS = {"free": "free", "cfree": "free", "__libc_free": "free", "realloc": "realloc", "__libc_realloc": "realloc"}
"""Public names of functions, by the names of their symbols."""

_INNERMOST = 16  # the function must be among this many innermost frames
_LIBRARY = ("std::", "__gnu_cxx::")  # namespaces of the C++ library
_HEADER = 16  # bytes of a chunk before the pointer that malloc returns (malloc/malloc.c of glibc)
_PASSED = tuple(map(GENERAL.index, ARGUMENTS))  # numbers of the registers of arguments


class ReleasedPointer(NamedTuple):
    """The argument of a call of free() or realloc(). `function`: "free" or "realloc". `value`: the
    pointer. `level`: the index of the caller's frame. `by`: the function of the C++ library that
    called it, for example std::string's _M_dispose; "" if none did."""

    function: str
    value: int
    level: int
    origin: Optional[Origin]
    by: str = ""


def find_released_pointer(tracer: Tracer, unwinder: Unwinder, names: Sequence[NamedFrame]) -> Optional[ReleasedPointer]:
    """Return the pointer; None if the thread is not in free() or realloc(), or if the pointer is
    not certain. `names`: the names of the tracer's frames."""
    if tracer.target.arch.name not in (X86_64.name, AARCH64.name):
        return None
    calls = [at for at, one in enumerate(names[:_INNERMOST]) if one.function in _FUNCTIONS]
    # free() of a library that adds headers to blocks is a caller of the allocator's free().
    calls = [at for at in calls if names[at].module == names[calls[0]].module]
    caller = calls[-1] + 1 if calls else _find_outside(tracer, unwinder, names)
    try:
        if tracer.target.arch.name == AARCH64.name:
            return _find_on_aarch64(tracer, unwinder, names, caller, bool(calls))
        function, entry = "", 0
        extent = unwinder.extent(tracer.frames[caller - 1].call) if calls else None
        if extent is not None:
            function, entry = names[caller - 1].function, extent.start
        elif caller:
            function = name_called(tracer, caller)
            if function in _FUNCTIONS:
                value = tracer.value(caller, RDI)
                origin = tracer.origin(caller, RDI, value) if value is not None else None
                return ReleasedPointer(_FUNCTIONS[function], value, caller, origin) if value is not None else None
            function, entry = "free", _find_entry(tracer, names, "free")
        if not entry or caller >= len(tracer.frames):
            return None
        passed = _follow_call(tracer, caller, entry, bool(calls))
        by = _library_function(tracer, names[caller], (tracer.called_function(caller), *(passed.through if passed is not None else ())))
        if passed is not None:
            return ReleasedPointer(_FUNCTIONS[function], passed.value, caller, _origin(tracer, caller, passed), by)
        value = _find_kept(tracer, caller, entry, bool(calls))
        # A function that the frame calls, and that jumped to free(), may have changed its argument.
        is_direct = value is not None and (tracer.called_function(caller) or tracer.called_address(caller)) == entry
        origin = tracer.origin(caller, RDI, value) if is_direct else None
        return ReleasedPointer(_FUNCTIONS[function], value, caller, origin, by) if value is not None else None
    except CapstoneMissing:
        return None


def _find_on_aarch64(
    tracer: Tracer, unwinder: Unwinder, names: Sequence[NamedFrame], caller: int, is_proven: bool
) -> Optional[ReleasedPointer]:
    """Return the pointer that a frame of AArch64 passed to free() or realloc(); see
    find_released_pointer. `caller`: the frame that may have called the function. `is_proven`:
    whether the next inner frame is this function."""
    # Few processes need this module.
    from findleaks.audit.crash.aarch64_release import find_passed_pointer

    if not 0 < caller < min(len(tracer.frames), len(names)):
        return None
    extent = unwinder.extent(tracer.frames[caller - 1].call) if is_proven else None
    if extent is not None:
        entries = {extent.start: names[caller - 1].function}
    else:
        entries = {_find_entry(tracer, names, name): name for name in ("free", "realloc")}
    for entry, function in entries.items():
        passed = find_passed_pointer(tracer, caller, entry, extent is not None) if entry else None
        if passed is not None:
            by = _library_function(tracer, names[caller], passed.through)
            return ReleasedPointer(_FUNCTIONS[function], passed.value, caller, passed.origin, by)
    return None


def _find_outside(tracer: Tracer, unwinder: Unwinder, names: Sequence[NamedFrame]) -> int:
    """Return the index of the first frame that may have called free() if no frame is free(): the
    first one outside the innermost module; 0 if there is none. free() of glibc 2.31 and 2.43 ends
    with jumps to other functions. In musl, free() is a jump to a function without a name and
    without an unwind table; the program may contain it."""
    levels = range(1, min(_INNERMOST, len(tracer.frames), len(names)))
    is_described = [unwinder.extent(tracer.frames[at].call) is not None for at in levels]
    outside = next((at for at, found in zip(levels, is_described) if found and names[at].module != names[0].module), 0)
    return outside or next((at for at, found in zip(levels, is_described) if found), 0)


def _find_entry(tracer: Tracer, names: Sequence[NamedFrame], function: str) -> int:
    """Return the address of a function in the innermost module; 0 if it is unknown."""
    symbol = tracer.target.symbol(function, names[0].module) if names and names[0].module else None
    return symbol.address if symbol is not None else 0


def _follow_call(tracer: Tracer, caller: int, function: int, is_proven: bool) -> Optional[Passed]:
    """Return the argument of the function at the address `function`, if a frame calls this
    function, or calls one that jumps to it. `is_proven`: whether the next inner frame is this
    function. Otherwise the called function must not have a frame: fclose() calls free(), and then
    jumps to it."""
    called = tracer.called_function(caller) or tracer.called_address(caller)
    if not called or (not is_proven and tracer.reader.entry(tracer.frames[caller - 1].call) == called):
        return None
    known = {number: tracer.value(caller, number) for number in _PASSED}
    values = {number: value for number, value in known.items() if value is not None}
    return follow_jumps(tracer.reader, Memory(tracer.target), called, values, function, is_proven)


def _origin(tracer: Tracer, caller: int, passed: Passed) -> Optional[Origin]:
    """Return the origin of the argument `passed`, which a frame or the function that it calls has
    passed."""
    if passed.word:
        return Origin("memory", caller, passed.word, tracer.target.arch.word, passed.offset)
    origin = tracer.origin(caller, passed.register, passed.value - passed.offset) if passed.register >= 0 else None
    return origin._replace(offset=origin.offset + passed.offset) if origin is not None else None


def _library_function(tracer: Tracer, frame: NamedFrame, through: Sequence[int]) -> str:
    """Return the name of the function of the C++ library that a frame calls, or that the frame
    executes; "" if there is none. `through`: the called function and those to which it jumped,
    which have no frame."""
    names = []
    for called in through:
        symbol = tracer.target.symbolize(called) if called else None
        names += [without_parameters(symbol.name)] if symbol is not None and symbol.address == called else []
    found = next((name for name in (*names, frame.short_name()) if name.startswith(_LIBRARY)), "")
    for name in STRING_NAMES:
        found = found.replace(name, "std::string")
    return found


def _find_kept(tracer: Tracer, caller: int, function: int, is_proven: bool) -> Optional[int]:
    """Return the argument of the function at the address `function` if this function, one to which
    it jumps, or the one that these call, keeps it in a register. glibc's free() passes the address
    of the chunk to _int_free(), which is two words less than the pointer. `is_proven`: whether the
    frame inside of the caller is this function. Otherwise the caller must call it, or call a
    function of the program that jumps only to it."""
    reader, memory, called = tracer.reader, Memory(tracer.target), tracer.called_function(caller)
    if not is_proven and called != function:
        # A function that has a frame did not jump, such as abort().
        is_inside = reader.entry(tracer.frames[caller - 1].call) == called
        if not called or is_inside or not only_jumps_to(reader, memory, called, function):
            return None
    start = function
    offsets: Offsets = {RDI: 0}  # of the arguments at `start`
    for level in (caller - 1, caller - 2):
        entry = reader.entry(tracer.frames[level].call) if level >= 0 else 0
        if entry and start != entry:
            offsets = find_offsets(reader, memory, start, offsets, entry)
        if not entry or not offsets:
            return None
        known, place = tracer.known_registers(level), _call_address(tracer, level)
        for register, sources in find_kept_arguments(reader, entry, place).items():
            kept = _choose_argument(sources, known.get(register), tracer.known_registers(level + 1))
            if kept is not None and offsets.get(kept[0]) in (0, -_HEADER):
                return known[register] - kept[1] - offsets[kept[0]]
        start = tracer.called_function(level)
        offsets = find_offsets(reader, memory, entry, offsets, place) if start else {}
    return None


def _choose_argument(sources: Sequence[Source], value: Optional[int], outer: Mapping[int, int]) -> Optional[Source]:
    """Return the only source from which a register can have its value; None if there are several,
    or if it is not an argument. `outer`: the registers of the calling frame, which the function had
    at its start."""
    possible = [one for one in sources if one[0] in _PASSED or one[0] not in outer or outer[one[0]] + one[1] == value]
    return possible[0] if value is not None and len(possible) == 1 and possible[0][0] in _PASSED else None


def _call_address(tracer: Tracer, level: int) -> int:
    """Return the address of the call instruction at which a frame is; 0 if it is unknown."""
    code = tracer.code(level)
    return code.steps[-1].code.address if code is not None else 0
