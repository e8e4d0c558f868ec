"""Match patterns with wildcards, which users write for types, modules and functions."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(pattern: str, text: str, question: bool = True) -> bool:
    """Whether `pattern` matches the whole of `text`. `*` matches any characters, `?` (if
    `question`) any single character, and `[` only itself, as in [abi:cxx11]. The time is at most
    quadratic, even if there are many stars: since Python 3.9 fnmatch's regular expressions do not
    backtrack over more than one star."""
    pattern = pattern.replace("[", "[[]")
    return fnmatchcase(text, pattern if question else pattern.replace("?", "[?]"))
