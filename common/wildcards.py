"""Patterns with wildcards, as users write them for types, modules and functions."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(pattern: str, text: str, question: bool = True) -> bool:
    """Whether `pattern` matches the whole of `text`.
    `*` matches any characters, `?` (if `question`) any single one, and `[` only itself, as in
    [abi:cxx11]. Takes quadratic time at worst, with any number of stars: since Python 3.9,
    fnmatch's regular expressions do not backtrack over more than one."""
    pattern = pattern.replace("[", "[[]")
    return fnmatchcase(text, pattern if question else pattern.replace("?", "[?]"))
