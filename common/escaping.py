"""Escape text from a target, so that it cannot control a terminal, end a line, or run in a shell.

Names in a core are untrusted. They may contain escape sequences, line ends, marks of text
direction, and bytes that are not UTF-8. Inside findleaks they stay unchanged, because they are also
used to open files. `commands.emit` passes each line of text through `visible`, and writes JSON with
`json_line`. Nothing else writes to the user."""

from __future__ import annotations

import re


class Markup(str):
    """A line that `emit` prints unchanged. It contains escape sequences for colours that findleaks
    wrote."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return text as one line that is safe on a terminal. Characters that are not printable are
    escaped.

    Not printable (str.isprintable) are the categories Cc, Cf, Cs, Co, Cn, Zl, Zp, and Zs except the
    space: C0, DEL and C1, line ends, marks of direction and of zero width. `\\xNN` is an ASCII
    character, or a byte that is not UTF-8 (decoded by "surrogateescape"). Other characters are
    `\\uNNNN` or `\\UNNNNNNNN`; \\n, \\r and \\t are written in this form."""
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
    """Return JSON on one line, in ASCII. All other characters are escaped.
    A byte that is not UTF-8 is written as the four characters `\\xNN`, as in text. Python would
    write a lone surrogate, which is not Unicode and which parsers refuse (RFC 7493, 2.1; RFC 8259,
    8.2)."""
    import json  # loading findleaks into a debugger does not need this

    line = json.dumps(item)
    return re.sub(_JSON_ESCAPE, _well_formed, line) if "\\ud" in line else line


_JSON_ESCAPE = r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u(d[89a-f][0-9a-f]{2})|.)"
"""Matches an escape in JSON text: a pair of surrogates, a lone surrogate, or any other."""


def _well_formed(match: re.Match[str]) -> str:
    return "\\" + _escape(chr(int(match[3], 16))) if match[3] else match[0]
