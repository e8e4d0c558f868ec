"""Text hints: readable text in a target's bytes, safe to print: no control or escape sequences."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Optional

from findleaks.formatting import character_columns, count_columns
from findleaks.target.arch import Arch

LONGEST = 200
COLUMNS = 24
_LEAST = 4
_LEAST_OPEN = 8
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\e", '"': '\\"', "\\": "\\\\"}
_SPACES = "\n\t\r"


def text_hint(data: bytes, arch: Arch, is_mapped: Callable[[int], bool]) -> str:
    """Return the text at the beginning of a block, quoted and cut to COLUMNS columns; the text of a
    short std::string; "zeros"; or "".

    Text has at least 4 characters up to its NUL, or 8 if `data` ends before it. "+8" precedes
    text after a first word that is not text (a list node's pointer, a length). The six bytes of an
    address may be printable: a first word for which `is_mapped` is true is a pointer, not text."""
    if not data:
        return ""
    if not data.strip(b"\0"):
        return "zeros" if len(data) >= arch.word else ""
    text = _text(data)
    if text is not None and not _is_pointer(data[: arch.word], arch, is_mapped):
        return quote(text)
    inner = 2 * arch.word
    if len(data) > inner + 1:
        length = int.from_bytes(data[arch.word : inner], arch.byteorder)
        if _LEAST <= length <= 15 and len(data) > inner + length and data[inner + length] == 0:
            text = _text(data[inner : inner + length + 1])
            if text is not None and len(text.encode("utf-8")) == length:
                return quote(text)
    text = _text(data[arch.word :], least=6)
    return f"+{arch.word} {quote(text)}" if text is not None else ""


def text_hints(hints: memoryview, ends: memoryview, text: bytes, arch: Arch) -> list[str]:
    """Return what `text_hint` returns for blocks whose text the engine found: see
    rows.RowColumns."""
    from findleaks.engine.rows import Hint  # only `blocks` has such columns

    made = list(map(_WITHOUT_TEXT.__getitem__, hints))
    plain = re.compile(_PLAIN)
    second = f"+{arch.word} "
    places = [match.start() for match in re.finditer(b"[%c%c]" % (Hint.TEXT, Hint.SECOND), hints)]
    bounds = [0, *ends]
    if plain.fullmatch(text):
        # In most programs, all text is plain. It is decoded once instead of block by block.
        whole = text.decode("ascii")
        for at in places:
            low, high = bounds[at], bounds[at + 1]
            shown = f'"{whole[low:high]}"' if high - low <= COLUMNS else f'"{whole[low : low + COLUMNS]}…"'
            made[at] = second + shown if hints[at] == Hint.SECOND else shown
        return made
    for at in places:
        body = text[bounds[at] : bounds[at + 1]]
        if not plain.fullmatch(body):
            shown = quote(body.decode("utf-8"))
        elif len(body) <= COLUMNS:
            shown = f'"{body.decode("ascii")}"'
        else:
            shown = f'"{body[:COLUMNS].decode("ascii")}…"'
        made[at] = second + shown if hints[at] == Hint.SECOND else shown
    return made


_WITHOUT_TEXT = ("", "zeros", "", "")  # by Hint
_PLAIN = rb"[ !#-\[\]-~]*"
"""Characters that are shown unchanged."""


def _is_pointer(first: bytes, arch: Arch, is_mapped: Callable[[int], bool]) -> bool:
    """Whether the first word is a mapped address (as in common/native/readable_text.c)."""
    return len(first) == arch.word and 0 in first and is_mapped(int.from_bytes(first, arch.byteorder))


def _text(data: bytes, least: int = _LEAST) -> Optional[str]:
    body, end, _ = data.partition(b"\0")
    try:
        # `final` is False if the data ends first: the last character may be cut in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(body, bool(end))
    except UnicodeDecodeError:
        return None
    if len(text) < (least if end else _LEAST_OPEN) or not all(_readable(c) for c in text[:least]):
        return None
    odd = sum(not _readable(c) for c in text)
    return text if odd * 8 <= len(text) else None


def _readable(character: str) -> bool:
    return character.isprintable() or character in _SPACES


def _escape(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def character_table() -> bytearray:
    """Build the C engine's table of characters below 65,536: 0 if unprintable, else 1 + columns.
    This takes 20 ms."""
    return bytearray(1 + character_columns(c) if c.isprintable() else 0 for c in map(chr, range(1 << 16)))


def quote(text: str, columns: int = COLUMNS) -> str:
    """Return text in quotes, safe to print, cut to this number of columns."""
    shown, taken = "", 0
    for character in text:
        part = character if character.isprintable() and character not in _ESCAPES else _escape(character)
        wide = count_columns(part)
        if taken + wide > columns or len(shown) > 3 * columns:
            return f'"{shown}…"'
        shown += part
        taken += wide
    return f'"{shown}"'
