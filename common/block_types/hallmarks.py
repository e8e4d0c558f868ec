"""Rules that recognise a library's objects by tags and invariants in their first bytes.

A rule is a line `NAME: TEST; TEST; …`. A table of rules is a file of such lines; `#` begins a
comment. A place is the offset of a member in bytes. If the member is a pointer, further offsets
follow it: "0.56" is the member at offset 56 of the object that the word at offset 0 points to. The
tests:

- `u8 PLACE = VALUES`, `u32 PLACE = VALUES` or `word PLACE = VALUES`: a number. VALUES are numbers
  and ranges ("1..4") with "|" between them. `self` is the address of the object, `self+48` an
  address in it, `@PLACE` the word at another place.
- `code PLACE = GLOB`: a pointer to code of a file whose name matches, such as "libssl*".
- `text PLACE = GLOB`: a pointer to a C string that matches. `{PLACE}` in NAME inserts this string.
  `{gtype PLACE}` inserts the name of the GLib type whose address is at a place. The rule fails if
  this type is not a type of objects. `{class PLACE}` inserts the C++ type whose mangled name, as in
  std::type_info, is the string at a place.
- `size = 48..` or `size = 48..64`: usable bytes of the block.
- `at = 0|8`: offsets of the object in its block (default: 0).
- `loaded = GLOB`: the process has loaded a file whose name matches. Use it if other programs may
  have the same words by chance.

Layouts are those of targets with words of 8 bytes; others have no rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.demangle import demangle_type
from findleaks.errors import UsageError
from findleaks.value_classes import NamedTuple
from findleaks.wildcards import matches

MOST_RULES = 1000
_HEAD = 256  # bytes at the start of a block that are read once for all rules
_BYTES = {"u8": 1, "u32": 4, "word": 8}
_PLACE = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}")  # at most three pointers are followed
_TEST = re.compile(r"(u8|u32|word|code|text) (\S+) *= *(.+)")
_BRACES = re.compile(r"\{(gtype |class )?([\d.]+)\}")

NameAt = Callable[[int], str]
"""Returns the name of something at an address; "" if it has none."""


class Test(NamedTuple):
    """A condition: the kind of value at a place, and the values that meet it. `bounds`: the least
    and the largest number of each value, if they do not depend on the block; else ()."""

    kind: str
    place: Sequence[int]
    values: str
    bounds: Sequence[tuple[int, int]] = ()


class Rule(NamedTuple):
    """A rule. `sizes` are the least and the largest usable size of the block, `starts` offsets in
    the block at which the object may begin. `loaded`: a pattern of the name of a file that must be
    loaded, or ""."""

    name: str
    tests: Sequence[Test]
    sizes: tuple[int, int]
    starts: Sequence[int]
    loaded: str


def parse_table(text: str, path: str = "") -> list[Rule]:
    """Return the rules of a table. `path` is for messages. UsageError: a line is not a rule."""
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            rules.append(_parse_rule(line, f"{path}:{number}"))
    if len(rules) > MOST_RULES:
        raise UsageError(f"{path}: more than {MOST_RULES} rules")
    return rules


def _parse_rule(line: str, where: str) -> Rule:
    name, colon, rest = line.partition(": ")
    tests: list[Test] = []
    sizes, starts, loaded = (0, 1 << 62), [0], ""
    try:
        for part in filter(None, map(str.strip, rest.split(";"))):
            key, _, value = (word.strip() for word in part.partition("="))
            if key == "size":
                low, dots, high = value.partition("..")
                sizes = int(low, 0), int(high, 0) if high else sizes[1] if dots else int(low, 0)
            elif key == "at":
                starts = [int(one, 0) for one in value.split("|")]
            elif key == "loaded":
                loaded = value
            else:
                tests.append(_parse_test(part))
        if any(not _PLACE.fullmatch(place) for _, place in _BRACES.findall(name)):
            raise ValueError
    except ValueError:
        raise UsageError(f"{where}: {line[:80]!r} is not a rule; expected NAME: TEST; TEST, such as  my object: u32 0 = 0x1234") from None
    if not colon or not tests:
        raise UsageError(f"{where}: {line[:80]!r} has no test; expected NAME: TEST; TEST")
    return Rule(name, tests, sizes, starts, loaded)


def _parse_test(part: str) -> Test:
    match = _TEST.fullmatch(part)
    if match is None:
        raise ValueError
    kind, place, values = match.groups()
    bounds = [_bounds(value.strip(), lambda _: 0, 0) for value in values.split("|")] if kind in _BYTES else []
    is_fixed = "self" not in values and "@" not in values
    return Test(kind, _parse_place(place), values.strip(), bounds if is_fixed else ())


def _parse_place(text: str) -> Sequence[int]:
    if not _PLACE.fullmatch(text):
        raise ValueError
    return [int(one) for one in text.split(".")]


def _bounds(value: str, word_at: Callable[[Sequence[int]], Optional[int]], start: int) -> tuple[int, int]:
    """Return the least and the largest number that a value includes."""
    if value.startswith("self"):
        return (start + int(value[5:] or "0", 0),) * 2
    if value.startswith("@"):
        found = word_at(_parse_place(value[1:]))
        return (1, 0) if found is None else (found, found)
    low, dots, high = value.partition("..")
    return int(low, 0), int(high if dots else low, 0)


class Hallmarks:
    """Applies rules to the blocks of one target. `code_file` returns the name of the file that has
    code at an address. `gtype_name` returns the name of GLib's type at an address. `files`: the
    names of the loaded files."""

    def __init__(self, memory: Memory, rules: Sequence[Rule], code_file: NameAt, gtype_name: NameAt, files: Sequence[str]) -> None:
        self._memory, self._code_file, self._gtype_name = memory, code_file, gtype_name
        self._rules: Sequence[Rule] = ()
        if memory.size == 8:
            self._rules = [one for one in rules if not one.loaded or any(matches(one.loaded, file) for file in files)]

    def name(self, address: int, size: int) -> str:
        """Return the name of the first rule that the block at `address` of `size` usable bytes
        meets, safe to print; "" for none."""
        head = self._memory.read(address, min(size, _HEAD))
        for rule in self._rules:
            if rule.sizes[0] <= size <= rule.sizes[1]:
                for first in rule.starts:
                    if all(self._meets(test, address, size, head, first) for test in rule.tests):
                        name = self._expand(rule.name, address + first)
                        if name:
                            return name
        return ""

    def _expand(self, name: str, start: int) -> str:
        """Return the name of a rule, with texts in place of its braces; "" if a type is missing."""
        for kind, place in _BRACES.findall(name):
            word = self._word(start, _parse_place(place)) or 0
            text = self._gtype_name(word) if kind == "gtype " else self._text(start, _parse_place(place))
            if kind == "class ":
                # GCC puts a "*" before the names of types that are not compared by name.
                text = demangle_type(text.lstrip("*"))
            if kind and not text:
                return ""
            name = name.replace(f"{{{kind}{place}}}", text)
        return name

    def _meets(self, test: Test, address: int, size: int, head: bytes, first: int) -> bool:
        """Return whether an object at the offset `first` of a block meets a condition. `head`: the
        beginning of the block."""
        width, at = _BYTES.get(test.kind, 8), first + test.place[0]
        if at + width > size:
            return False
        start = address + first
        place = self._address(start, test.place)
        if place is None:
            return False
        if test.kind == "code":
            word = self._memory.word(place)
            name = self._code_file(word) if word else ""
            return bool(name) and matches(test.values, name)
        if test.kind == "text":
            text = self._text(start, test.place)
            return bool(text) and matches(test.values, text)
        in_head = len(test.place) == 1 and at + width <= len(head)
        data = head[at : at + width] if in_head else self._memory.read(place, width)
        number = int.from_bytes(data, self._memory.arch.byteorder)
        return bool(data) and any(low <= number <= high for low, high in test.bounds or self._values(test, start))

    def _values(self, test: Test, start: int) -> Iterator[tuple[int, int]]:
        return (_bounds(value.strip(), lambda place: self._word(start, place), start) for value in test.values.split("|"))

    def _word(self, start: int, place: Sequence[int]) -> Optional[int]:
        address = self._address(start, place)
        return self._memory.word(address) if address is not None else None

    def _address(self, start: int, place: Sequence[int]) -> Optional[int]:
        """Return the address of a place; None if a pointer on the way is unreadable or null."""
        address = start
        for offset in place[:-1]:
            word = self._memory.word(address + offset)
            if not word:
                return None
            address = word
        return address + place[-1]

    def _text(self, start: int, place: Sequence[int]) -> str:
        """Return the text that the word at a place points to, safe to print; "" if the word points
        to no text."""
        word = self._word(start, place)
        return read_name(self._memory, word) if word else ""
