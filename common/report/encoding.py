"""Substitutes for characters that the terminal's or file's character set lacks."""

from __future__ import annotations

import codecs

HANDLER = "findleaks.plain"  # error handler of `str.encode` that `install` registers

_PLAIN = {
    "…": "~",  # one character each, so that columns stay aligned
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


def plain(text: str, charset: str) -> str:
    """`text` in `charset`: substitutes for signs of tables and prose, else escapes (\\u4e2d)."""
    install()
    return text.encode(charset, HANDLER).decode(charset)


def install() -> None:
    """Register the error handler, once, for `sys.stdout.reconfigure(errors=HANDLER)`."""
    codecs.register_error(HANDLER, _substitute)


def terminal_charset() -> str:
    """The character set of the user's locale, as the environment names it."""
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
