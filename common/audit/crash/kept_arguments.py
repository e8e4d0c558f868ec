"""Find the registers that contain arguments of a function at one of its instructions (x86-64)."""

from __future__ import annotations

from typing import Optional

from findleaks.audit.crash.straight_code import CodeReader, Step
from findleaks.disasm.registers import ARGUMENTS, CALLEE_SAVED, GENERAL

Source = tuple[int, int]
"""A register at the start of the function, and the number that was added to its value."""

Kept = dict[int, tuple[Source, ...]]
"""By number of a register: its possible sources, which differ by the path."""

_MOST_SOURCES = 3  # maximum number of sources of one register


def find_kept_arguments(reader: CodeReader, function: int, place: int) -> Kept:
    """Return the registers that functions preserve and that contain, on each path from the
    function's start to the instruction at `place`, an argument or the value of a preserved register
    at the start. {} if the place is not in the function, or if a jump may lead to any address.

    Example: _int_free() copies the address of a chunk to rbx, and changes rbx when it merges
    chunks. At the calls before, rbx is the argument. glibc 2.36 checks the argument before it
    copies it: at the call that reports this error, rbx is the argument, or still the caller's."""
    steps = reader.whole_function(function)
    index = {step.code.address: at for at, step in enumerate(steps)}
    if place not in index:
        return {}
    first: Kept = {number: ((number, 0),) for number in (*map(GENERAL.index, ARGUMENTS), *CALLEE_SAVED)}
    states: list[Optional[Kept]] = [None] * len(steps)
    states[0], waiting = first, [0]
    while waiting:
        at = waiting.pop()
        step, state = steps[at], states[at] or {}
        after = _execute(step, state)
        for target in _next_addresses(reader, step):
            following = index.get(target, -1)
            if following < 0:
                continue
            known = states[following]
            merged = after if known is None else _merge(known, after)
            if merged != known:
                states[following] = merged
                waiting.append(following)
    found = states[index[place]] or {}
    return {number: one for number, one in found.items() if number in CALLEE_SAVED}


def _merge(one: Kept, other: Kept) -> Kept:
    """Return the registers after two paths meet, with the sources of both."""
    merged = {number: tuple(sorted({*sources, *other[number]})) for number, sources in one.items() if number in other}
    return {number: sources for number, sources in merged.items() if len(sources) <= _MOST_SOURCES}


def _next_addresses(reader: CodeReader, step: Step) -> list[int]:
    flow, target = step.effect.flow, step.effect.target
    ends = flow == "call" and step.code.target is not None and reader.never_returns(step.code.target)
    if ends or flow in ("return", "stop", "unknown"):
        return []
    if flow == "jump":
        return [target]
    return [step.code.end, target] if flow == "branch" else [step.code.end]


def _execute(step: Step, state: Kept) -> Kept:
    """Return the registers that contain arguments after an instruction."""
    code = step.code
    source = code.base if code.name == "lea" else code.source
    is_move = code.name == "mov" and code.displacement is None and code.immediate is None
    is_sum = code.name == "lea" and code.scaled < 0
    copied = state.get(source) if (is_move or is_sum) and code.wide and code.destination >= 0 else None
    if copied is None and not any(step.changed & 1 << number for number in state):
        return state
    after = {number: one for number, one in state.items() if not step.changed & 1 << number}
    if copied is not None:
        more = code.displacement or 0 if is_sum else 0
        after[code.destination] = tuple((register, added + more) for register, added in copied)
    return after
