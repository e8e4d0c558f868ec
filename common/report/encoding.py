"""Substitute for characters that the character set of the terminal or file lacks."""

from __future__ import annotations

import codecs

HANDLER = "findleaks.plain"  # name of the error handler of `str.encode` that `install` registers

_PLAIN = {
    "…": "~",  # each substitute is one character, so that columns stay aligned
    "–": "-",
    "·": ",",
    "→": ">",
    "←": "<",
    "└": "`",
    "×": "x",
    "µ": "u",
    "█": "#",
    "▓": "%",
    "▒": ":",
    "░": ".",
    "□": "o",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
}


def substitute_text(text: str, charset: str) -> str:
    """Convert text to `charset`. Characters for tables and punctuation are substituted; other
    missing characters are escaped (\u4e2d)."""
    install()
    return text.encode(charset, HANDLER).decode(charset)


def install() -> None:
    """Register the error handler, once, for `sys.stdout.reconfigure(errors=HANDLER)`."""
    codecs.register_error(HANDLER, _substitute)


def terminal_charset() -> str:
    """Return the name of the character set of the user's locale; "ascii" if Python does not support
    it."""
    import locale  # only files need it

    try:
        return codecs.lookup(locale.nl_langinfo(locale.CODESET) or "ascii").name
    except LookupError:
        return "ascii"


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_one, error.object[error.start : error.end])), error.end


def _one(character: str) -> str:
    return _PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode("ascii")
