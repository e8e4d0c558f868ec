"""Demangle Rust's symbol names, in both schemes. The hashes of crates are removed.

- v0: see `demangle_rust_v0`.
- legacy: rustc_symbol_mangling/src/legacy.rs of rustc 1.37 and newer. A legacy name is a C++ name
  with `$LT$` for "<" and the like, whose last part is a hash.

Example: `_RNvCs1234_7mycrate3foo` and `_ZN7mycrate3foo17h0123456789abcdefE` are `mycrate::foo`.
Names without hashes are the same in two builds of a program."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.demangle_rust_v0 import LONGEST_TEXT, read_v0

LONGEST = 4096  # characters of a mangled name

_LEGACY = re.compile(r"_ZN((?:[0-9]+[^0-9].*)?)17h[0-9a-f]{16}E(.*)", re.DOTALL)
_COMPILERS_SUFFIX = re.compile(r"\.llvm\.[0-9A-F@]+")
_FIELD = re.compile(r"(\.[0-9]+)*")
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_ESCAPE = re.compile(r"\$(?:(SP|BP|RF|LT|GT|LP|RP|C)|u([0-9a-f]{1,6}))\$|\.\.")


def demangle_rust(name: str) -> Optional[str]:
    """Return the readable form of a Rust symbol, without hashes.

    Returns None if it is not a Rust symbol, or if it or its text is too long."""
    if len(name) > LONGEST:
        return None
    if name.startswith("_R"):
        return _demangle_v0(name)
    if name.startswith("_ZN"):
        return _demangle_legacy(name)
    return None


def _add_suffix(text: str, suffix: str) -> Optional[str]:
    """Append to `text` what a compiler appended to the mangled name.

    ".cold" marks a copy of a function, and becomes " [clone .cold]", as in names of C++. ".0" marks
    the first field of a variable that LLVM has split into its fields, and is not changed."""
    rest = _COMPILERS_SUFFIX.sub("", suffix)
    if _FIELD.fullmatch(rest):
        return text + rest
    return f"{text} [clone {rest}]" if rest[0] == "." else None


def _demangle_legacy(name: str) -> Optional[str]:
    match = _LEGACY.fullmatch(name)
    if match is None:
        return None
    rest, parts = match.group(1), []
    while rest:
        length = re.match(r"[0-9]{1,4}", rest)
        if length is None:
            return None
        end = length.end() + int(length.group())
        part = rest[length.end() : end]
        if end > len(rest) or not part:
            return None
        parts.append(_ESCAPE.sub(_unescape, part[1:] if part.startswith("_$") else part))
        rest = rest[end:]
    text = "::".join(parts)
    return _add_suffix(text, match.group(2)) if 0 < len(text) <= LONGEST_TEXT else None


def _unescape(match: re.Match[str]) -> str:
    """Return what an escape stands for: `$LT$` -> "<", `$u7b$` -> "{", `..` -> "::". Control
    characters stay escaped."""
    name, code = match.group(1), match.group(2)
    if name:
        return _ESCAPES[name]
    if not code:
        return "::"
    number = int(code, 16)
    return chr(number) if 0x20 <= number < 0x11_0000 and chr(number).isprintable() else match.group()


def _demangle_v0(name: str) -> Optional[str]:
    end = min((at for at in (name.find("."), name.find("$")) if at >= 0), default=len(name))
    text = read_v0(name[2:end])
    return None if text is None else _add_suffix(text, name[end:])
