"""Follow a function that ends with a jump to another one (x86-64).

The frame of such a function is gone when the other one runs: std::string::_M_dispose() loads the
address of the characters, and jumps to operator delete, which jumps to free(). All paths from the
function's start are executed with the registers that are known at the call. The result is certain:
if two paths reach the other function with different values, or one with an unknown value, there is
none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.straight_code import CodeReader, Step
from findleaks.disasm.registers import ARGUMENTS, CALLER_SAVED, GENERAL, RBP, RDI, RIP, RSP
from findleaks.value_classes import NamedTuple

_MASK = (1 << 64) - 1
_MOST_STEPS = 1500  # maximum number of instructions on all paths
_UNREADABLE = 1 << 62  # an address that no process can read
_MOST_VISITS = 8  # number of states at one address, after which registers that change are unknown
_FORGOTTEN = -2  # `register` of a value that changes in a loop
_PASSED = tuple(map(GENERAL.index, ARGUMENTS))  # numbers of the registers of arguments
_STACK = 1 << 61  # stands for the stack pointer at the start of the function; not readable either


class Passed(NamedTuple):
    """The first argument of the function that was reached. `word`: the address of the word from
    which it was loaded, 0 if it was passed in `register` (-1: a constant). `offset`: the value
    minus the value that was loaded or passed. `through`: the destinations of the jumps."""

    value: int
    word: int = 0
    register: int = -1
    offset: int = 0
    through: tuple[int, ...] = ()


_State = dict[int, Passed]


class _Path(NamedTuple):
    """A path that is not finished: the next instruction, the known registers, the known words of
    the frame by address, the destinations of jumps, and whether one of them is in another function.
    Addresses on the stack are relative to _STACK, and are values of the register RSP."""

    address: int
    registers: _State
    frame: _State
    jumps: tuple[int, ...] = ()
    has_left: bool = False


def follow_jumps(
    reader: CodeReader, memory: Memory, start: int, known: Mapping[int, int], goal: int, is_proven: bool = True
) -> Optional[Passed]:
    """Return the first argument with which the function at `start` jumps to the one at `goal`; None
    if it is not certain. If `start` is `goal`, this is its own argument. `known`: the values of
    general registers at the start, by number. `is_proven`: whether the goal was reached. If this is
    not known, no path may jump to another function. Raises CapstoneMissing."""
    found = _follow(reader, memory, start, known, goal, RDI, is_proven)
    values = {one.value if one is not None and one.register not in (_FORGOTTEN, RSP) else None for one, _ in found}
    return found[0][0] if len(values) == 1 and None not in values and not any(has_frame for _, has_frame in found) else None


def only_jumps_to(reader: CodeReader, memory: Memory, start: int, goal: int) -> bool:
    """Whether the function at `start` jumps to the one at `goal`, and to no other function. Raises
    CapstoneMissing."""
    return bool(_follow(reader, memory, start, {}, goal, RDI, is_proven=False))


Offsets = Mapping[int, int]
"""By number of a register: its value minus the first argument of a function."""


def find_offsets(reader: CodeReader, memory: Memory, start: int, known: Offsets, goal: int) -> Offsets:
    """Return the offsets of the registers of arguments at the instruction at `goal`, to which paths
    from the function at `start` lead, without those that differ by the path. `known`: the offsets
    at the start. Raises CapstoneMissing."""
    values = {register: _UNREADABLE + offset for register, offset in known.items()}
    ends = _follow_all(reader, memory, start, values, goal)
    offsets = {}
    for register in _PASSED:
        passed = [end.registers.get(register) for end in ends]
        found = {one.value - _UNREADABLE if one is not None and one.register in known and not one.word else None for one in passed}
        if len(found) == 1 and None not in found:
            offsets[register] = found.pop() or 0
    return offsets


def _follow(
    reader: CodeReader, memory: Memory, start: int, known: Mapping[int, int], goal: int, register: int, is_proven: bool = True
) -> list[tuple[Optional[Passed], bool]]:
    """Return the values that a register has when the paths from `start` reach `goal`, and whether
    the function has a frame then; [] if a path cannot be followed."""
    found = []
    for path in _follow_all(reader, memory, start, known, goal, is_proven):
        passed = path.registers.get(register)
        has_frame = _value(path.registers, RSP) != _STACK
        found.append((passed._replace(through=path.jumps) if passed is not None else None, has_frame))
    return found


def _follow_all(reader: CodeReader, memory: Memory, start: int, known: Mapping[int, int], goal: int, is_proven: bool = True) -> list[_Path]:
    """Return the paths from `start` that reach `goal`; [] if a path cannot be followed."""
    paths = [_Path(start, {number: Passed(value, 0, number) for number, value in (*known.items(), (RSP, _STACK))}, {})]
    found: list[_Path] = []
    visits: dict[int, list[_Path]] = {}  # the states at each address
    seen = set[tuple[int, tuple[tuple[int, Passed], ...], tuple[tuple[int, Passed], ...]]]()
    while paths:
        path = paths.pop()
        if path.address == goal:
            found.append(path)
            continue
        path = _forget_counters(path, visits.setdefault(path.address, []))
        state = (path.address, tuple(sorted(path.registers.items())), tuple(sorted(path.frame.items())))
        if state in seen:
            continue
        seen.add(state)
        step = reader.step(path.address) if len(seen) <= _MOST_STEPS else None
        if step is not None and _is_last(reader, step):
            continue
        after = _execute(step, path, memory) if step is not None else None
        if after is None or (not is_proven and path.has_left and not after):
            return []
        paths += [one._replace(has_left=path.has_left or _leaves(reader, step, one.address)) for one in after]
    return found


def _forget_counters(path: _Path, visits: list[_Path]) -> _Path:
    """If a path is often at an address, return it without the values that changed since the last
    time, such as the counter of a loop. Otherwise the path would have a new state in each round."""
    if len(visits) >= _MOST_VISITS:
        before, unknown = visits[-1], Passed(0, 0, _FORGOTTEN)
        registers = {number: one if before.registers.get(number) == one else unknown for number, one in path.registers.items()}
        frame = {at: one if before.frame.get(at) == one else unknown for at, one in path.frame.items()}
        path = path._replace(registers=registers, frame=frame)
    visits.append(path)
    return path


def _is_last(reader: CodeReader, step: Step) -> bool:
    """Whether an instruction calls a function that does not return, such as malloc_printerr()."""
    return step.effect.flow == "call" and step.code.target is not None and reader.never_returns(step.code.target)


def _leaves(reader: CodeReader, step: Optional[Step], address: int) -> bool:
    """Whether an instruction jumps to an address in another function."""
    return step is not None and address != step.code.end and reader.entry(address) != reader.entry(step.code.address)


def _execute(step: Step, path: _Path, memory: Memory) -> Optional[list[_Path]]:
    """Return the paths after an instruction: none after a return or a trap, two after a branch.
    Return None if the next instruction is not known."""
    code, flow = step.code, step.effect.flow
    registers = dict(path.registers)
    if code.name == "jmp":
        target = code.target if code.target is not None else _target(step, registers, memory)
        # A jump to a null pointer, such as a hook that is not set, was not executed.
        return None if target is None else [path._replace(address=target, jumps=(*path.jumps, target))] if target else []
    if flow in ("return", "stop"):
        return []
    if flow == "branch" and step.effect.target and not code.name.startswith("loop"):
        return [path._replace(address=code.end), path._replace(address=step.effect.target)]
    if flow in ("call", "system"):
        # The called function may change any word, so a word that was loaded before may be a
        # different one now. It does not change the words that its caller saved in its own frame.
        kept = {number: one for number, one in registers.items() if number not in CALLER_SAVED and not one.word}
        return [path._replace(address=code.end, registers=kept, frame=_without_words(path.frame))]
    if flow != "next":
        return None
    value, frame = _result(step, path, memory), path.frame
    for number in [number for number in registers if step.changed & 1 << number]:
        del registers[number]
    if code.name in ("push", "pop", "leave") or step.moved != 0 or code.destination == RSP:
        _set_stack_pointer(step, path, registers)
    if value is not None:
        registers[code.destination] = value
    written = _written_word(step, path)
    if written is not None:
        stored = path.registers.get(code.source) if code.name == "push" or (code.stores and code.wide) else None
        frame = {at: one for at, one in frame.items() if not written - 8 < at < written + max(code.width, 8)}
        frame.update({written: stored} if stored is not None else {})
    elif code.writes_memory and code.name not in ("cmp", "test"):
        # It may change a word that a register was loaded from, or another one that is loaded later.
        registers = {number: one for number, one in registers.items() if not one.word}
        frame = _without_words(frame)
    return [path._replace(address=code.end, registers=registers, frame=frame)]


def _without_words(state: _State) -> _State:
    """Return the values that were not loaded from memory."""
    return {at: one for at, one in state.items() if not one.word}


def _set_stack_pointer(step: Step, path: _Path, registers: _State) -> None:
    """Set the stack pointer in `registers` to its value after an instruction that changes it. If
    this is unknown, remove it."""
    code, before = step.code, path.registers.get(RSP)
    if code.name == "leave":
        saved = path.registers.get(RBP)
        after, restored = _add(saved, 8), path.frame.get(saved.value) if saved is not None else None
        registers.pop(RBP, None)
        registers.update({RBP: restored} if restored is not None else {})
    elif step.moved is not None:
        after = _add(before, step.moved)
    elif code.name == "mov" and code.displacement is None:
        after = path.registers.get(code.source)
    else:
        after = _add(path.registers.get(code.base), code.displacement or 0) if code.name == "lea" and code.scaled < 0 else None
    registers.pop(RSP, None)
    registers.update({RSP: after} if after is not None and after.register == RSP else {})


def _written_word(step: Step, path: _Path) -> Optional[int]:
    """Return the address of the word of the frame that an instruction changes; None if it changes
    no word of the frame whose address is known."""
    code, sp = step.code, path.registers.get(RSP)
    if code.name == "push":
        return sp.value - 8 if sp is not None and sp.register == RSP else None
    registers = [path.registers.get(one) for one in (code.base, code.scaled) if one >= 0]
    is_frame = any(one is not None and one.register == RSP for one in registers)
    return _operand(step, path.registers) if is_frame and code.writes_memory and code.name not in ("cmp", "test") else None


def _target(step: Step, registers: _State, memory: Memory) -> Optional[int]:
    """Return the destination of an indirect jump; None if it is unknown."""
    if step.code.displacement is None:
        return _value(registers, step.code.source)
    address = _operand(step, registers)
    return memory.word(address) if address is not None else None


def _result(step: Step, path: _Path, memory: Memory) -> Optional[Passed]:
    """Return the value to which an instruction sets its destination; None if it is unknown."""
    code, registers = step.code, path.registers
    if code.destination < 0 or code.destination == RSP or code.width < 4:
        return None
    if code.name == "pop":
        return path.frame.get(_value(registers, RSP) or 0)
    if code.loads and code.wide:
        address = _operand(step, registers)
        if address is not None and address in path.frame:
            return path.frame[address]
        word = memory.word(address) if address is not None else None
        return Passed(word, address or 0) if word is not None else None
    if code.name in ("mov", "movabs") and code.immediate is not None:
        return Passed(code.immediate & (_MASK if code.wide else (1 << 32) - 1))
    if code.name == "xor" and code.source == code.destination:
        return Passed(0)
    if not code.wide:
        return None
    if code.name == "mov" and code.source >= 0 and code.displacement is None:
        return registers.get(code.source)
    if code.name == "lea" and code.base == RIP:
        return Passed(code.displacement or 0)
    if code.name == "lea" and code.base >= 0 and code.scaled < 0:
        return _add(registers.get(code.base), code.displacement or 0)
    if code.name in ("add", "sub") and code.immediate is not None and code.displacement is None:
        return _add(registers.get(code.destination), code.immediate if code.name == "add" else -code.immediate)
    return None


def _add(one: Optional[Passed], number: int) -> Optional[Passed]:
    return one._replace(value=one.value + number & _MASK, offset=one.offset + number) if one is not None else None


def _operand(step: Step, registers: _State) -> Optional[int]:
    """Return the address of an instruction's memory operand; None if it is unknown."""
    return step.code.operand_address(lambda number: _value(registers, number))


def _value(registers: _State, number: int) -> Optional[int]:
    one = registers.get(number)
    return one.value if one is not None and one.register != _FORGOTTEN else None
