"""Read which functions optimized code executes at a call, including inlined functions.

For each call, the deoptimization data of the code has a translation: a list of instructions that
describe the interpreter's frames to which the frame is converted if the code is deoptimized.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/code.h and deoptimization-data.h
(DeoptimizationData), src/deoptimizer/deoptimizer.h, translation-opcode.h, translation-array.cc,
frame-translation-builder.cc, src/base/vlq.h."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.machine_code import Code
from findleaks.runtimes.v8.frames.safepoints import find_deoptimization, first_entry
from findleaks.runtimes.v8.metadata import TAG
from findleaks.value_classes import NamedTuple

_MOST_FRAMES, _MOST_INSTRUCTIONS, _MOST_KINDS = 512, 1 << 14, 128
_TRANSLATIONS, _LITERALS, _FUNCTION = 0, 2, 6  # indices in deoptimization data without constants
_ENTRY = 3  # elements for each deoptimization; the second is the place of the translation
_NAMES = "_ZZN2v88internal25TranslationOpcodeToStringENS0_17TranslationOpcodeEE5names"
_COUNTS = "_ZZN2v88internal29TranslationOpcodeOperandCountENS0_17TranslationOpcodeEE6counts"
BEGIN, FUNCTION, BUILTIN, OTHER_FRAME, MATCH, LITERAL = "begin", "function", "builtin", "other frame", "match", "literal"


class Inlined(NamedTuple):
    """A function that is executed: its SharedFunctionInfo, the function if it is known (else 0),
    and the offset of its bytecode; -1 for a builtin."""

    shared: int
    function: int
    offset: int


class _Instructions(NamedTuple):
    """The instructions of a version of V8: the number of operands of each, as a digit, and the
    meaning of some. `are_bytes`: instructions have one byte, and greater bytes stand for
    repetitions of instructions of an earlier translation."""

    operands: str
    meanings: Mapping[int, str]
    are_bytes: bool


def _instructions(operands: str, meanings: str) -> _Instructions:
    """`meanings`: the numbers of instructions that begin a translation; those of frames of
    functions, builtins, and others; those that repeat instructions; those of literals."""
    kinds = zip((BEGIN, FUNCTION, BUILTIN, OTHER_FRAME, MATCH, LITERAL), meanings.split(";"))
    found = {int(one): kind for kind, numbers in kinds for one in numbers.split()}
    return _Instructions(operands.replace(" ", ""), found, MATCH in found.values())


_OLD = _instructions("3533332111 1111111111 1111112", "0; 1; 3 4; 2 5 6; ; 25")
"""Up to V8 8.5, which has no table of the numbers of operands."""

_WITHOUT_NAMES = (
    _instructions("5333213432 1033111111 1111111111 1101111121", "12 13; 0 1; 2 3; 4 5 6 7 8 9; 39; 33"),
    _instructions("6433213433 3100331110 1111111111 1111111011 11121", "14 15; 0 1; 2 3; 4 5 6 7 8 9 10; 44; 38"),
)
"""V8 12.4 and 13.6, which have no table of names."""


def _meaning(name: str) -> str:
    if name.startswith("BEGIN"):
        return BEGIN
    if name.startswith("INTERPRETED_FRAME"):
        return FUNCTION
    if name.startswith("JAVA_SCRIPT_BUILTIN_CONTINUATION"):
        return BUILTIN
    if "FRAME" in name or name == "INLINED_EXTRA_ARGUMENTS":
        return OTHER_FRAME
    return {"MATCH_PREVIOUS_TRANSLATION": MATCH, "LITERAL": LITERAL}.get(name, "")


def _read_instructions(heap: FrameHeap) -> Optional[_Instructions]:
    """Return the instructions of a V8; None if they are unknown."""
    counts, names = heap.target.symbol(_COUNTS), heap.target.symbol(_NAMES)
    if counts is None:
        return _OLD if heap.version < (9, 0) else None
    data = heap.memory.read(counts.address, min(counts.size, 4 * _MOST_KINDS))
    operands = "".join(map(str, memoryview(data).cast("I"))) if len(data) % 4 == 0 else ""
    if names is None:
        return next((one for one in _WITHOUT_NAMES if one.operands == operands), None)
    words = heap.memory.words(names.address, len(operands)) or ()
    meanings = {number: _meaning(heap.memory.c_string(word, _MOST_KINDS).decode("ascii", "replace")) for number, word in enumerate(words)}
    return _Instructions(operands, meanings, MATCH in meanings.values()) if meanings else None


class Translations:
    """Reads the translations of the V8 of this heap."""

    def __init__(self, heap: FrameHeap) -> None:
        self._heap = heap
        self._set = _read_instructions(heap)
        constant = heap.metadata.constant
        self._literals = constant("DeoptimizationDataLiteralArrayIndex") or _LITERALS
        names = ("DeoptimizationDataWrappedSharedFunctionInfoIndex", "DeoptimizationDataSharedFunctionInfoIndex")
        self._function = next(filter(None, map(constant, names)), _FUNCTION)

    def function_of(self, code: Code) -> int:
        """Return the tagged address of the SharedFunctionInfo of optimized code; 0 if unknown."""
        found = self._heap.element(code.data, self._function)
        if self._heap.is_a(found, ("shared_function_info_wrapper",)):
            found = self._heap.memory.word(found - TAG + 8) or 0
        return found if self._heap.is_shared(found) else 0

    def read(self, code: Code, pc: int) -> Sequence[Inlined]:
        """Return the functions that are executed at a return address of optimized code, innermost
        first; () if they are unknown."""
        number = find_deoptimization(self._heap, code, pc)
        length = self._heap.length(code.data)
        first = first_entry(length, _first_index(self._heap.version))
        if number < 0 or first is None or self._set is None:
            return ()
        place = self._heap.smi(code.data, first + _ENTRY * number + 1)
        data = self._heap.bytes_of(self._heap.element(code.data, _TRANSLATIONS))
        if data is None or not 0 <= place < len(data):
            return ()
        try:
            found = list(self._frames(_Reader(data, self._set, self._heap.version), place))
        except (IndexError, ValueError):
            return ()
        literals = self._heap.element(code.data, self._literals)
        found = [
            (self._heap.element(literals, shared), self._heap.element(literals, function), offset) for shared, function, offset in found
        ]
        named = [Inlined(*one) for one in found]
        # The outermost function is that of the code.
        is_whole = bool(named) and named[0].shared == self.function_of(code) and all(self._heap.is_shared(one.shared) for one in named)
        return named[::-1] if is_whole else ()

    def _frames(self, reader: _Reader, place: int) -> Iterator[tuple[int, int, int]]:
        """Yield for each function, outermost first, the literals of its SharedFunctionInfo and of
        the function (-1: unknown), and the bytecode offset (-1 for a builtin). The first value of a
        frame is the function. Raises ValueError if the translation is damaged."""
        frames, functions = reader.begin(place)
        last: Optional[tuple[int, int]] = None
        for kind, operands in reader.instructions():
            if last is not None:
                yield last[0], _decode_signed(operands[0]) if kind == LITERAL else -1, last[1]
                last = None
            if kind not in (FUNCTION, BUILTIN, OTHER_FRAME):
                if frames <= 0:
                    break
                continue
            frames -= 1
            if kind != OTHER_FRAME:
                functions -= 1
                last = _decode_signed(operands[1]), _decode_signed(operands[0]) if kind == FUNCTION else -1
        if frames or functions or last is not None:
            raise ValueError


class _Reader:
    """Reads one translation."""

    def __init__(self, data: bytes, instructions: _Instructions, version: tuple[int, int]) -> None:
        self._data, self._set, self._at = data, instructions, 0
        self._marks_in_lowest = version < (9, 0)
        self._basis: list[tuple[int, list[int]]] = []

    def begin(self, place: int) -> tuple[int, int]:
        """Start at this place. Return the numbers of frames and of functions. Raises ValueError."""
        self._at = place
        number, operands = self._instruction()
        if self._set.meanings.get(number) != BEGIN:
            raise ValueError
        if not self._set.are_bytes:
            return _check_count(_decode_signed(operands[0])), _check_count(_decode_signed(operands[1]))
        if operands[0]:
            following, self._at = self._at, place - operands[0]
            while self._at < place and len(self._basis) < _MOST_INSTRUCTIONS:
                if self._data[self._at] >= len(self._set.operands):
                    break
                found = self._instruction()
                if self._set.meanings.get(found[0]) == BEGIN and self._basis:
                    break
                self._basis.append(found)
            self._at = following
        return _check_count(_decode_signed(operands[1])), _check_count(_decode_signed(operands[2]))

    def instructions(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the meaning and the operands of each instruction after the first, which begins the
        translation. Raises IndexError at the end of the data."""
        position = 1
        for _ in range(_MOST_INSTRUCTIONS):
            repeated, count = 0, len(self._set.operands)
            if self._set.are_bytes and self._data[self._at] >= count:
                repeated = self._data[self._at] - count
                self._at += 1
            else:
                number, operands = self._instruction()
                meaning = self._set.meanings.get(number, "")
                if meaning == BEGIN:
                    return
                if meaning != MATCH:
                    yield meaning, operands
                    position += 1
                    continue
                repeated = operands[0]
            for number, operands in self._basis[position : position + repeated]:
                yield self._set.meanings.get(number, ""), operands
            position += repeated

    def _instruction(self) -> tuple[int, list[int]]:
        if self._set.are_bytes:
            number = self._data[self._at]
            self._at += 1
        else:
            number = _decode_signed(self._number())
        if not 0 <= number < len(self._set.operands):
            raise ValueError
        return number, [self._number() for _ in range(int(self._set.operands[number]))]

    def _number(self) -> int:
        """Read a number of seven bits a byte, lowest first. The bit that is set if another byte
        follows is the highest one, or up to V8 8 the lowest."""
        found = 0
        for shift in range(0, 42, 7):
            byte = self._data[self._at]
            self._at += 1
            found |= (byte >> 1 if self._marks_in_lowest else byte & 0x7F) << shift
            if not byte & (1 if self._marks_in_lowest else 0x80):
                return found
        raise ValueError


def _decode_signed(number: int) -> int:
    """Return a number whose lowest bit is its sign."""
    return -(number >> 1) if number & 1 else number >> 1


def _check_count(count: int) -> int:
    if not 0 < count <= _MOST_FRAMES:
        raise ValueError
    return count


def _first_index(version: tuple[int, int]) -> int:
    """Return the smallest index at which the entries of deoptimization data may begin."""
    return 12 if version >= (13, 0) else 9
