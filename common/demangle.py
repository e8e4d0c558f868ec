"""C++ names as people write them, from the mangled names in symbol tables and in RTTI, by the C++ library's own `__cxa_demangle`.

The function: Itanium C++ ABI, 3.4 "Demangler API" (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#demangler); libstdc++ has it from
libiberty's cp-demangle.c, libc++abi from LLVM's ItaniumDemangle.h. GDB's own copy is linked into it and exports nothing, so the library
is loaded by name, in the debuggers too. Where there is none, names stay mangled.

The names come out of hostile memory, and a few hundred characters can stand for gigabytes: a name may repeat its own parts. So it is the
text's length that is estimated first, from above, and a name beyond the bounds stays mangled.

Rust: names of its legacy scheme are C++ names, hash and all. Those of v0 (`_R…`) stay mangled, as no demangler that loads in every Python
is fit for hostile names: rust_demangler 1.0 hangs on 200 characters, and prints; `demangle` needs Python 3.11; the others are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Optional

LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
"""In this order: libstdc++ writes names as GDB does."""
LONGEST = 1024
"""Characters of a mangled name. It bounds the nesting, too: each level takes one. libstdc++ from GCC 9 on takes no longer names."""
LONGEST_TEXT = 4096
"""Characters of a readable name."""
_LARGEST = 1 << 20
"""The most that `estimate` may say. The worst names found within it make 20 MB of text, in 0.1 s."""

_REFERENCE = re.compile(rb"TL[0-9]*_[0-9]*_|[ST][0-9A-Z]*_")
_NUMBER = re.compile(rb"[0-9]+")
_EXPANSION = re.compile(rb"Dp(?![RKOVP]*T[0-9]*_)|sp(?![RKOVP]*T[0-9]*_|[ae]c)")
"""Of a pack, but for those of the parameter itself, and the likes of "special" and "space", where no expression follows."""
_ENDLESS = re.compile(rb"[ADQX].*sr", re.DOTALL)
"""Perhaps a name in a scope (sr) in an expression: libstdc++ of GCC 12 never comes back from _Z1fIXsr1aDC and the like."""
_LAST_NAME = re.compile(rb"C[1-5I]|D[0-5]")
"""Constructors and destructors repeat their class's name."""


@lru_cache(maxsize=8192)
def demangle(name: str) -> str:
    """`_ZN3foo3barEi` -> `foo::bar(int)`; a name that is not mangled, or that cannot be read, comes back as it is."""
    if not name.startswith("_Z"):
        return name
    plain, at, version = name.partition("@")
    shown = _demangled(plain)
    if shown is None and "." in plain:  # the library knows copies of functions (f.cold), not those of data (table.llvm.123)
        plain, _, copy = plain.partition(".")
        shown = _demangled(plain)
        shown = shown and f"{shown} [clone .{copy}]"
    return name if shown is None else shown + at + version


@lru_cache(maxsize=8192)
def demangle_type(name: str) -> str:
    """A type's mangled name as std::type_info holds it (`N3foo3BarE` -> `foo::Bar`); "" when it is none."""
    return "" if name.startswith("_") else _demangled(name) or ""


def _demangled(name: str) -> Optional[str]:
    """What the C++ library makes of a name or type; None if it is none, if there is no library, or beyond the bounds."""
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    call = _cxa_demangle() if within_bounds(data) else None
    shown = call(data) if call is not None else None
    return shown.decode("utf-8", "surrogateescape") if shown is not None and len(shown) <= LONGEST_TEXT else None


def within_bounds(name: bytes) -> bool:
    """Whether the library may be given this name: it is short, its text will not be long, and the library comes to an end."""
    return len(name) <= LONGEST and b"\0" not in name and not _ENDLESS.search(name) and estimate(name) <= _LARGEST


def estimate(name: bytes) -> int:
    """About how many characters the text of a mangled name may have at most; 20 times as many if it is made of builtin types' letters.

    S…_ stands for a part that was complete before it first occurs, expanded as it was then. T_ stands for a template argument of the
    function around the place where it is *shown*, not read. So the text of what precedes is kept as a + b × argument, where b counts
    each T…_ in it. Where functions are parts of the name (Z: of local classes, values), an argument may contain the same parts again,
    with the arguments of the next function. What a pack's expansion shows, it shows for each of the pack's elements.
    The expression finds references in identifiers, too, which makes the estimate larger. They must not pass for the first occurrence:
    what lies where an identifier may be, or may be the end of one (two letters), is taken for another, larger part each time.
    """
    parts: dict[bytes, tuple[int, int]] = {}
    plain = arguments = first = 0
    spans = _identifiers(name)
    identifier = next(spans, None)
    covered = 0
    for match in _REFERENCE.finditer(name):
        at, key = match.start(), match.group()
        while identifier is not None and identifier[0] <= at:
            covered = max(covered, identifier[1])
            identifier = next(spans, None)
        sure = at >= covered and key.count(b"S") + key.count(b"T") == 1
        if b"T" in key:
            first = first or plain + at
            arguments += 1
        if b"S" in key:
            part = (parts.get(key) if sure else None) or (plain + at, arguments)
            if sure:
                parts[key] = part
            plain += part[0]
            arguments += part[1]
        if plain + arguments > _LARGEST:
            return plain + arguments
    plain += len(name)
    size = plain
    if arguments:
        elements = len(name) ** min(len(_EXPANSION.findall(name)), 3)
        functions = name.count(b"Z") + name.count(b"cv")  # conversion operators: their type precedes the arguments
        size = first if functions < 2 else plain
        for _ in range(min(functions, 24) or 1):
            size = (plain + arguments * size) * elements
    return size * max(1, len(_LAST_NAME.findall(name)))


def _identifiers(name: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of all that may be an identifier, by ascending start: so many characters as the number before it says."""
    for match in _NUMBER.finditer(name):
        digits, start = match.group()[-4:], match.end()
        while digits and start + int(digits) > len(name):  # the end of a number may be one, behind a digit that is something else
            digits = digits[1:]
        yield start, start + int(digits or b"0")


@lru_cache(maxsize=1)
def _cxa_demangle() -> Optional[Callable[[bytes], Optional[bytes]]]:
    """The library's function; None without one. What it returns was allocated by malloc, and is freed here."""
    try:
        import ctypes

        process = ctypes.CDLL(None)
    except (ImportError, OSError):
        return None
    for name in LIBRARIES:
        try:
            function = ctypes.CDLL(name)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        break
    else:
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = ctypes.c_void_p
    free = process["free"]  # not the library's: that would be libc's, where malloc may be another's that was preloaded
    free.argtypes, free.restype = (ctypes.c_void_p,), None

    def call(name: bytes) -> Optional[bytes]:
        text = function(name, None, None, None)
        if not text:
            return None
        try:
            return ctypes.string_at(text)
        finally:
            free(text)

    return call
