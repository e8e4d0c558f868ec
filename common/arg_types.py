"""Parsers for words of a command line or of a rules file: addresses, sizes, ranges."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection

from findleaks.errors import UsageError
from findleaks.value_classes import NamedTuple

UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
"""Bytes by unit, in lower case."""


def address_word(word: str) -> int:
    """Address from "0x55d0c0a012a0" or a decimal number; UsageError otherwise."""
    if not is_number(word):
        raise UsageError(f"{word!r} is not an address: write 0x and hexadecimal digits")
    value = int(word, 0)
    if not 0 <= value < 1 << 64:
        raise UsageError(f"{word} is no address: it does not fit 64 bits")
    return value


def is_number(word: str) -> bool:
    """Whether the word is a number, decimal or with a prefix (0x)."""
    try:
        int(word, 0)
    except ValueError:
        return False
    return True


def one_of(word: str, names: Collection[str], what: str) -> str:
    """`word` if it is one of `names`; else UsageError, which calls it a `what`."""
    if word not in names:
        raise UsageError(f"no {what} {word!r}; there are: {', '.join(names)}")
    return word


def count_word(word: str) -> int:
    """Count from "0" or "50", as the `type` of an argparse option; ArgumentTypeError otherwise."""
    try:
        value = int(word)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is not a count: write 0 (all), 1, 2 …")
    return min(value, sys.maxsize)


def seconds_word(word: str) -> float:
    """Seconds from "0.05" up, as the `type` of an argparse option; ArgumentTypeError otherwise."""
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0.05 <= value <= 1e8:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no number of seconds: write 0.05 to 100000000")
    return value


def size_word(word: str) -> int:
    """Bytes from "4096", "4k" or "1.5MiB" (k = KiB = 1,024); UsageError otherwise."""
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?|0x[0-9a-fA-F]{1,16})\s*([a-zA-Z]*)", word.strip())
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{word!r} is not a size: write bytes, or a number with k, M or G")
    number = float(match[1]) if "." in match[1] else int(match[1], 16 if match[1].startswith("0x") else 10)
    return int(number * unit)


class SizeRange(NamedTuple):
    """Range of sizes in bytes, both ends included."""

    low: int
    high: int


def size_range(word: str) -> SizeRange:
    """Range from "48", "16-64", "4k-" or "-64"; UsageError otherwise."""
    low, dash, high = (part.strip() for part in word.partition("-"))
    if dash and not low and not high:
        raise UsageError(f"{word!r} has neither end: write 48, 48-64, 1k- or -16")
    if not dash:
        return SizeRange(size_word(word), size_word(word))
    made = SizeRange(size_word(low) if low else 0, size_word(high) if high else 1 << 64)
    if made.low > made.high:
        raise UsageError(f"{word!r}: the smaller size comes first")
    return made
