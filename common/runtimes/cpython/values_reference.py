"""Recognise the values of a dictionary: the reference for common/native/cpython_values.h."""

from __future__ import annotations

from findleaks.target.arch import Arch

MOST_VALUES = 30  # SHARED_KEYS_MAX_SIZE: values of a dictionary at most
_LOWEST_VALUE, _ADDRESS_BITS = 4096, 48


def find_values(data: memoryview, word: int, size: int) -> int:
    """See find_values in cpython_values.h."""
    capacity, used, is_embedded = data[:3]
    end = 1 + capacity
    whole = (end + -(-capacity // word)) * word
    fits = whole <= size and size - whole <= whole // 4 + 4 * word
    return end if 0 < capacity <= MOST_VALUES and used <= capacity and not is_embedded and fits else 0


def are_values(data: memoryview, arch: Arch, size: int) -> bool:
    """See are_values in cpython_values.h."""
    end = find_values(data, arch.word, size) if len(data) >= arch.word and data[0] > 1 and data[1] else 0
    values = arch.unpack(bytes(data[: len(data) // arch.word * arch.word]))[1:end] if end else ()
    if any(value and (value % arch.word or not _LOWEST_VALUE <= value < 1 << _ADDRESS_BITS) for value in values):
        return False
    order = data[end * arch.word : end * arch.word + data[1]] if end else data[:0]
    if not end or len(order) < data[1]:
        return end != 0
    return {number % 64 for number in order} == {number for number, value in enumerate(values) if value}
