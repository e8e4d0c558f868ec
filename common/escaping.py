"""The door for text out of a target: nothing of it acts on a terminal, ends a line, or runs in a shell.

A core is made by whoever made it: its names may hold escape sequences, line ends, marks that turn the direction of writing, and bytes that
are no text. Names keep them inside findleaks, for files are opened by them and JSON hands them on. What is shown goes through `visible`,
which `commands.emit` does with each line of text, and `commands.emit` writes JSON by `json_line`; nothing else writes to the user.
"""

from __future__ import annotations

import re


class Markup(str):
    """A line of our own marks only, with escape sequences for their colours: the one kind of text that `emit` prints as it is."""

    __slots__ = ()


def visible(text: str) -> str:
    """Text as one line that may go to a terminal: each character that is not printable is replaced by an escape.

    Those are the categories Cc, Cf, Cs, Co, Cn, Zl, Zp and Zs but the space itself (str.isprintable): C0, DEL and C1, line ends, marks of
    direction and of no width. `\\xNN` is an ASCII character, or a byte that is no UTF-8 (decoded by "surrogateescape"); other characters
    are `\\uNNNN` or `\\UNNNNNNNN`, and \\n, \\r and \\t are written so.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_line(item: object) -> str:
    """An object as JSON of one line, in ASCII: names are what the target has, each character that is not ASCII escaped.

    A byte of a name that is no UTF-8 stands there as the four characters `\\xNN`, as in text: a lone surrogate, which Python would write,
    is no Unicode, and parsers refuse it (RFC 7493, 2.1; RFC 8259, 8.2).
    """
    import json  # not needed for loading into a debugger

    line = json.dumps(item)
    return _JSON_ESCAPE.sub(_well_formed, line) if "\\ud" in line else line


_JSON_ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u(d[89a-f][0-9a-f]{2})|.)")
"""Each escape of a JSON text, from left to right: a pair of surrogates, a lone one, any other."""


def _well_formed(match: re.Match[str]) -> str:
    return "\\" + _escape(chr(int(match[3], 16))) if match[3] else match[0]
