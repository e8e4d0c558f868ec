"""Read hint files: which types the void pointers of a program refer to. One hint a line:

needs redisServer redisObject             # use the file only for programs with these types
redisObject.ptr -> quicklist if encoding == 9
dictEntry.v.val -> redisObject... if dict.type == &dbDictType
listNode.value -> client
sqlite3_stmt -> Vdbe                      # a type that is only declared
&refs_be_files -> files_ref_store         # blocks that begin with the address of this variable

A condition compares another member of the same struct, or a member of the nearest owner of another
type. Of several lines for a member, the first one that applies to a pointer counts. "..." after a
type: other data may follow it in the block. Otherwise, the size of the block must be that of the
type, or the type ends with an array."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from findleaks.errors import UsageError
from findleaks.target.files import read_user_file
from findleaks.value_classes import NamedTuple

LARGEST = 1 << 20
"""Maximum number of bytes of a hint file."""
MOST_LINES = 10_000
LONGEST = 1_000
"""Maximum number of characters of a line."""
READY = os.path.join(os.path.dirname(__file__), "ready")
"""The folder of the hint files of findleaks."""
PAYLOAD = "..."
_CONDITION = re.compile(r"\s+if\s+(\S+)\s*==\s*(\S+)$")


class SlotHint(NamedTuple):
    """A line of a hint file. `slot`: a member ("dictEntry.v.val"), a type, or "&variable". `member`
    and `value` are those of the condition, "" if there is none."""

    line: int
    slot: str
    type: str
    member: str = ""
    value: str = ""


class HintFile(NamedTuple):
    """A hint file. `is_ready`: it is one of findleaks, whose hints may be for another version of
    the program; they are ignored if types or members are missing."""

    path: str
    needs: tuple[str, ...]
    hints: tuple[SlotHint, ...]
    is_ready: bool = False


def parse_hints(text: str, path: str, is_ready: bool = False) -> HintFile:
    """Parse a hint file. Raises UsageError, with the number of the line."""
    needs: list[str] = []
    hints: list[SlotHint] = []
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        raise UsageError(f"{path}: a hint file has at most {MOST_LINES:,} lines")
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        if len(words) > LONGEST:
            raise UsageError(f"{path}:{number}: a line has at most {LONGEST:,} characters")
        if words.startswith("needs "):
            needs += words.split()[1:]
        elif words:
            hints.append(_parse_hint(words, number, path))
    return HintFile(path, tuple(needs), tuple(hints), is_ready)


def _parse_hint(words: str, number: int, path: str) -> SlotHint:
    slot, arrow, rest = (part.strip() for part in words.partition("->"))
    condition = _CONDITION.search(rest)
    kind = rest[: condition.start()].strip() if condition else rest
    if not arrow or not slot or not kind or " " in slot or (" if " in f"{rest} " and condition is None):
        raise UsageError(f"{path}:{number}: not a hint: write MEMBER -> TYPE, or MEMBER -> TYPE if MEMBER == VALUE")
    if condition and "." not in slot:
        raise UsageError(f"{path}:{number}: only members can have a condition")
    return SlotHint(number, slot, kind, *(condition.groups() if condition else ()))


def read_hint_file(path: str, is_ready: bool = False) -> HintFile:
    """Read and parse a hint file. Raises UsageError if that fails."""
    data = read_user_file(path, LARGEST, "a hint file")
    try:
        return parse_hints(data.decode("utf-8"), path, is_ready)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file (UTF-8)") from None


def ready_files(strings: bytes) -> Iterator[HintFile]:
    """Yield the hint files of findleaks for programs with these names of types."""
    for name in sorted(os.listdir(READY)) if os.path.isdir(READY) else ():
        if name.endswith(".hints"):
            found = read_hint_file(os.path.join(READY, name), True)
            if all(f"\0{one}\0".encode() in strings for one in found.needs):
                yield found
