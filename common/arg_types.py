"""Parse words of a command line or of a rules file: addresses, sizes, ranges."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection

from findleaks.errors import UsageError
from findleaks.value_classes import NamedTuple

UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
"""Bytes of each unit, in lower case."""


def parse_address(word: str) -> int:
    """Return the address that the word contains: "0x55d0c0a012a0" or a decimal number. Raises
    UsageError for other words."""
    if not is_number(word):
        raise UsageError(f"{word!r} is not an address: write 0x and hexadecimal digits")
    value = int(word, 0)
    if not 0 <= value < 1 << 64:
        raise UsageError(f"{word} is not an address: it does not fit in 64 bits")
    return value


def is_number(word: str) -> bool:
    """Whether the word is a number: decimal, or with a prefix such as 0x."""
    try:
        int(word, 0)
    except ValueError:
        return False
    return True


def is_type_hint(word: str) -> bool:
    """Whether a word of --type is ADDR=TYPE. All other words are patterns of names."""
    return "=" in word


def split_type_hint(word: str) -> tuple[str, str]:
    """Return the address and the type in "ADDR=TYPE". Names of types do not contain "=", so the
    last one separates them. Raises UsageError if a part is missing."""
    address, _, name = (part.strip() for part in word.rpartition("="))
    if not address or not name:
        raise UsageError(f"--type {word[:200]!r}: write ADDR=TYPE, as in --type '0x55d0c0a012a0=struct client'")
    return address, name


def check_choice(word: str, names: Collection[str], what: str) -> str:
    """Return `word` if it is one of `names`. Raises UsageError otherwise. `what`: the noun for the
    choices in the message."""
    if word not in names:
        raise UsageError(f"no {what} {word!r}; there are: {', '.join(names)}")
    return word


def parse_count(word: str) -> int:
    """Return the number that the word contains: "0", "50".
    Raises ArgumentTypeError, as argparse expects from the `type` of an option."""
    try:
        value = int(word)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is not a count: write 0 (all), 1, 2 …")
    return min(value, sys.maxsize)


def parse_seconds(word: str) -> float:
    """Return the number of seconds that the word contains. The minimum is 0.05.
    Raises ArgumentTypeError, as argparse expects from the `type` of an option."""
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0.05 <= value <= 1e8:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is not a number of seconds: write 0.05 to 100000000")
    return value


def parse_size(word: str) -> int:
    """Return the number of bytes for a word such as "4096", "4k" or "1.5MiB" (k = KiB = 1,024).
    Raises UsageError for other words."""
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?|0x[0-9a-fA-F]{1,16})\s*([a-zA-Z]*)", word.strip())
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{word!r} is not a size: write bytes, or a number with k, M or G")
    number = float(match[1]) if "." in match[1] else int(match[1], 16 if match[1].startswith("0x") else 10)
    return int(number * unit)


class SizeRange(NamedTuple):
    """A range of sizes in bytes. Both ends are included."""

    low: int
    high: int


def parse_size_range(word: str) -> SizeRange:
    """Return the range for a word such as "48", "16-64", "4k-" or "-64". Raises UsageError for
    other words."""
    low, dash, high = (part.strip() for part in word.partition("-"))
    if dash and not low and not high:
        raise UsageError(f"{word!r} has no lower and no upper size: write 48, 48-64, 1k- or -16")
    if not dash:
        return SizeRange(parse_size(word), parse_size(word))
    made = SizeRange(parse_size(low) if low else 0, parse_size(high) if high else 1 << 64)
    if made.low > made.high:
        raise UsageError(f"{word!r}: the first size must not be larger than the second")
    return made
