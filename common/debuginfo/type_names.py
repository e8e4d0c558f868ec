"""Normalise names of types to the form that GDB prints."""

from __future__ import annotations

import re

_LONG_TYPES = re.compile(r"\b(?:long|short)(?: (?:long|unsigned|int))*\b")


def shorten_template(name: str) -> str:
    """Normalise the template arguments in a name as GDB and demanglers print them: "long" instead
    of gcc's "long int"."""
    return _LONG_TYPES.sub(lambda match: _shorter(match[0]), name) if "<" in name else name


def _shorter(words: str) -> str:
    rest = [word for word in words.split() if word not in ("int", "unsigned")]
    return " ".join((["unsigned"] if "unsigned" in words.split() else []) + rest)
