"""Numbers in the streams of fields of Java classes, compressed as in HotSpot."""

from __future__ import annotations

import random

import pytest

from findleaks.runtimes.jvm.fields import decode_unsigned5


def encode(number: int) -> bytes:
    """Encode a number as HotSpot does (unsigned5.hpp): byte number n adds (byte - 1) * 64 ** n. There are at most five bytes, and only
    the last one may be below 192."""
    made = bytearray()
    while number >= 191 and len(made) < 4:
        number -= 191
        made.append(192 + number % 64)
        number //= 64
    made.append(number + 1)
    return bytes(made)


@pytest.mark.parametrize(("number", "data"), [(0, b"\x01"), (190, b"\xbf"), (191, b"\xc0\x01"), (192, b"\xc1\x01"), (255, b"\xc0\x02")])
def test_known_numbers(number: int, data: bytes) -> None:
    assert encode(number) == data
    assert list(decode_unsigned5(data)) == [number]


def test_streams_are_decoded_as_encoded() -> None:
    rng = random.Random(5)
    numbers = [rng.randrange(1 << rng.randrange(1, 30)) for _ in range(2000)]
    data = b"".join(map(encode, numbers))
    assert list(decode_unsigned5(data + b"\0garbage")) == numbers
    whole = list(decode_unsigned5(data[:1001]))
    assert whole == numbers[: len(whole)]  # an incomplete number is left out
