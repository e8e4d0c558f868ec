"""The tables about code that V8 writes are read correctly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fake
import pytest

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.frames import bytecode, reader, recorded_calls, safepoints, translations
from findleaks.runtimes.v8.frames.machine_code import MAGLEV, OPTIMIZED, Code

BASE = 0x10000


def unsigned(number: int) -> bytes:
    """Encode a number like base::VLQEncodeUnsigned."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def signed(number: int) -> bytes:
    return unsigned(-number << 1 | 1 if number < 0 else number << 1)


def zigzag(number: int) -> bytes:
    return unsigned(number << 1 if number >= 0 else -number * 2 - 1)


def heap(version: tuple[int, int], data: bytes = b"") -> Any:
    target = fake.FakeTarget({BASE: data + bytes(-len(data) % 4096 or 4096)})
    memory = Memory(target)
    return SimpleNamespace(version=version, memory=memory, read_table=memory.read)


def test_positions() -> None:
    chance = random.Random(1)
    offsets = sorted(chance.sample(range(3000), 200))
    entries = [(offset, chance.randrange(100_000), chance.random() < 0.5) for offset in offsets]
    for start in (0, -1):
        table, before, position = b"", start, 0
        for offset, source, is_statement in entries:
            step, raw = offset - before, source + 1 << 1
            table += zigzag(step if is_statement else -step - 1) + zigzag(raw - position)
            before, position = offset, raw
        assert list(bytecode._entries(table, start)) == [(offset, source) for offset, source, _ in entries]


@pytest.mark.parametrize(
    ("version", "kind", "header"), [((10, 2), OPTIMIZED, 2), ((13, 6), OPTIMIZED, 3), ((12, 4), MAGLEV, 4), ((13, 6), MAGLEV, 4)]
)
def test_safepoints(version: tuple[int, int], kind: str, header: int) -> None:
    """Addresses take three bytes, numbers one, and registers two. Maglev has one more byte for spilled registers."""
    points = [(0x50, 3, 0x12345), (0x99, -1, -1), (0x100, 7, 0x12349)]
    sizes = 1 | 2 << 1 | 3 << 4 | 1 << 7
    words = [len(points), sizes]
    words = [9, *words] if version >= (13, 0) else words
    words += [0] * (header - len(words))
    data = b"".join(word.to_bytes(4, "little") for word in words)
    for pc, number, trampoline in points:
        fields = pc.to_bytes(3, "little") + (number + 1).to_bytes(1, "little") + (trampoline + 1).to_bytes(3, "little")
        data += fields + bytes(3 if kind == MAGLEV else 2)
    code = Code(kind, BASE - 64, BASE - 32, BASE, 0, 0)
    found = heap(version, data)
    assert [tuple(one) for one in safepoints._safepoints(found, code)] == points
    assert safepoints.find_deoptimization(found, code, code.start + 0x50) == 3
    assert safepoints.find_deoptimization(found, code, code.start + 0x12349) == 7
    assert safepoints.find_deoptimization(found, code, code.start + 0x51) == -1


def read_frames(
    data: bytes, place: int, instructions: translations._Instructions, version: tuple[int, int]
) -> Sequence[tuple[int, int, int]]:
    reader = translations._Reader(data, instructions, version)
    return list(translations.Translations._frames(None, reader, place))  # type: ignore[arg-type]


def test_translations() -> None:
    """An instruction may repeat several instructions of an earlier translation, in one byte or with a number. The
    frames are two functions, then a builtin."""
    instructions = translations._WITHOUT_NAMES[1]
    count = len(instructions.operands)
    assert count == 45 and instructions.are_bytes

    def function(offset: int, literal: int) -> bytes:
        return bytes([1]) + signed(offset) + signed(literal) + signed(9) + unsigned(3)

    literal, slot, match = 38, 40, 44
    first = bytes([14]) + unsigned(0) + signed(2) + signed(2)
    first += function(12, 0) + bytes([slot]) + signed(5) + bytes([literal]) + signed(70) + function(300, 4) + bytes([literal]) + signed(6)
    second = bytes([14]) + unsigned(len(first)) + signed(3) + signed(3)
    # The function at offset 12 and both values are in the first translation.
    second += bytes([count + 3]) + function(301, 4) + bytes([match]) + unsigned(1)
    second += bytes([2]) + signed(77) + signed(5) + unsigned(1) + bytes([literal]) + signed(8)
    data = first + second + bytes([14])
    assert read_frames(data, 0, instructions, (13, 6)) == [(0, -1, 12), (4, 6, 300)]
    assert read_frames(data, len(first), instructions, (13, 6)) == [(0, -1, 12), (4, 6, 301), (5, 8, -1)]
    for cut in range(len(data) - 12):
        with pytest.raises((ValueError, IndexError)):
            read_frames(data[:cut], 0 if cut < len(first) else len(first), instructions, (13, 6))


def test_old_translations() -> None:
    """Up to V8 8.5, the lowest bit of a byte says whether another byte follows, and opcodes are encoded in the same way."""

    def number(value: int) -> bytes:
        bits, made = -value << 1 | 1 if value < 0 else value << 1, bytearray()
        while True:
            made.append((bits & 0x7F) << 1 | (bits > 0x7F))
            bits >>= 7
            if not bits:
                return bytes(made)

    words = [0, 2, 1, 0, 6, 3, 2, 1, 500, 4, 1, 0, 0, 25, 8, 0]
    data = b"".join(map(number, words))
    assert read_frames(data, 0, translations._OLD, (8, 4)) == [(4, 8, 500)]


def test_bytecodes_of_baseline_code() -> None:
    """A scaled bytecode has a prefix. After the size of the prologue, the numbers are the sizes of each bytecode's machine code."""
    sizes = bytes([1, 1, 1, 1, 2, 3]) + bytes([1, 1, 1, 1, 3, 5]) + bytes([1, 1, 1, 1, 5, 9])
    code = bytes([4, 0, 5, 0, 0, 4, 0, 5, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0]) + bytes(8)
    made = heap((13, 6), bytes(64) + code)
    made.bytes_of = {1: b"".join(map(unsigned, [40, 10, 200, 30, 7, 50]))}.get
    made.length = {BASE + 1: 20}.get
    made.metadata = SimpleNamespace(offset=lambda *names: 64)
    read = bytecode.Bytecode(made)
    read.__dict__["_sizes"] = sizes
    places = {1: -1, 40: -1, 41: 0, 50: 0, 51: 2, 250: 2, 251: 5, 281: 7, 287: 7, 288: 10, 337: 10, 338: -1}
    assert {offset: read.of_baseline(BASE + 1, 1, offset) for offset in places} == places


@pytest.mark.parametrize(
    ("has_isolates", "version", "reason"),
    [
        (False, (14, 1), "no thread was in V8 when the recording began"),
        (True, (7, 7), "V8 7.7 is not supported"),
        (True, (14, 0), "V8 14.0 is not supported"),
        (True, (13, 6), "symbols or constants of this V8 are missing"),
        (True, (0, 0), "symbols or constants of this V8 are missing"),  # this version has no symbols
    ],
)
def test_reasons_why_recorded_stacks_have_no_names(has_isolates: bool, version: tuple[int, int], reason: str) -> None:
    frames: Any = reader.JavaScriptFrames(fake.FakeTarget({}), None)  # type: ignore[arg-type]
    frames._heap = heap(version)
    frames._calls = SimpleNamespace(has_isolates=has_isolates, chain_settings=(), see_threads=lambda pointers: None)
    frames.see_threads([])
    (warning,) = frames.warnings
    assert warning.partition(": ")[2].startswith(reason)


def test_versions_with_names_in_recorded_stacks() -> None:
    assert reader.VERSIONS == recorded_calls.VERSIONS == ((7, 8), (14, 0))
