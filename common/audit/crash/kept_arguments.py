"""Find the registers that contain arguments of a function at one of its instructions (x86-64)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.audit.crash.straight_code import Step
from findleaks.disasm.registers import ARGUMENTS, CALLEE_SAVED, GENERAL

Kept = dict[int, tuple[int, int]]
"""By number of a register: the register in which the argument was passed, and the number that was
added to it."""


def find_kept_arguments(steps: Sequence[Step], place: int) -> Kept:
    """Return the registers that functions preserve and that contain an argument, on each path from
    the function's start to the instruction at `place`. `steps`: all instructions of the function,
    beginning with the first. {} if the place is not among them.

    Example: _int_free() copies the address of a chunk to rbx, and changes rbx when it merges
    chunks. At the calls before, rbx is the argument."""
    index = {step.code.address: at for at, step in enumerate(steps)}
    if place not in index:
        return {}
    first: Kept = {GENERAL.index(name): (GENERAL.index(name), 0) for name in ARGUMENTS}
    states: list[Optional[Kept]] = [None] * len(steps)
    states[0], waiting = first, [0]
    while waiting:
        at = waiting.pop()
        step, state = steps[at], states[at] or {}
        after = _execute(step, state)
        for target in _next_addresses(step):
            following = index.get(target, -1)
            if following < 0:
                continue
            known = states[following]
            merged = after if known is None else {number: one for number, one in known.items() if after.get(number) == one}
            if known is None or len(merged) < len(known):
                states[following] = merged
                waiting.append(following)
    found = states[index[place]] or {}
    return {number: one for number, one in found.items() if number in CALLEE_SAVED}


def _next_addresses(step: Step) -> list[int]:
    flow, target = step.effect.flow, step.effect.target
    if flow in ("return", "stop", "unknown"):
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
        after[code.destination] = (copied[0], copied[1] + (code.displacement or 0 if is_sum else 0))
    return after
