"""Demangle C++ names from symbol tables and RTTI, with `__cxa_demangle` of the C++ library.

The function is specified in Itanium C++ ABI, 3.4 "Demangler API"
(https://itanium-cxx-abi.github.io/cxx-abi/abi.html#demangler). In libstdc++ it is libiberty's
cp-demangle.c, and in libc++abi LLVM's ItaniumDemangle.h. GDB does not export its copy, so the
library is loaded by name in debuggers, too. Without a library, names stay mangled.

Names come from untrusted memory. A name of a few hundred characters can expand to gigabytes by
repeating its parts. Therefore names stay mangled if they are longer than LONGEST, or if the upper
bound on the length of their text exceeds _LARGEST.

Rust names of both schemes are read by `demangle_rust`. The C++ library does not know the v0 scheme
(`_R…`), and shows names of the legacy scheme with their hash."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Optional

# They are tried in this order, because the first one writes names as GDB does.
LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
LONGEST_TEXT = 4096  # characters of a readable name, as in demangle_rust_v0.py
# Maximum number of characters of a mangled name, which also limits nesting. It is libstdc++'s limit
# from GCC 9 on.
LONGEST = 1024
# Limit of the result of `estimate`. Within this limit, the worst known names expand to 20 MB, in
# 0.1 s.
_LARGEST = 1 << 20


_RUST_HASH = re.compile("17h[0-9a-f]{16}E")
_REFERENCE = re.compile(rb"TL[0-9]*_[0-9]*_|[ST][0-9A-Z]*_")
_NUMBER = re.compile(rb"[0-9]+")
_EXPANSION = re.compile(rb"Dp(?![RKOVP]*T[0-9]*_)|sp(?![RKOVP]*T[0-9]*_|[ae]c)")
"""Matches expansions of a parameter pack.
It matches neither the parameter itself nor identifiers such as "special" and "space", which no
expression follows."""
_ENDLESS = re.compile(rb"[ADQX].*sr", re.DOTALL)
"""Matches a possible scoped name (sr) in an expression: GCC 12's libstdc++ hangs on
_Z1fIXsr1aDC."""
# Constructors and destructors repeat the name of their class.
_LAST_NAME = re.compile(rb"C[1-5I]|D[0-5]")


@lru_cache(maxsize=8192)
def demangle(name: str) -> str:
    """Demangle a symbol: `_ZN3foo3barEi` -> `foo::bar(int)`.
    The name is returned unchanged if it is not mangled or cannot be demangled."""
    if name.startswith("_R") or _RUST_HASH.search(name):
        from findleaks.demangle_rust import demangle_rust  # few programs have names of Rust

        return demangle_rust(name) or _demangle_cpp(name)
    return _demangle_cpp(name)


def _demangle_cpp(name: str) -> str:
    if not name.startswith("_Z"):
        return name
    plain, at, version = name.partition("@")
    shown = _demangle(plain)
    # The library demangles names of function copies (f.cold), but not of data copies
    # (table.llvm.123).
    if shown is None and "." in plain:
        plain, _, copy = plain.partition(".")
        shown = _demangle(plain)
        shown = shown and f"{shown} [clone .{copy}]"
    return name if shown is None else shown + at + version


@lru_cache(maxsize=8192)
def demangle_type(name: str) -> str:
    """Demangle the name of a type from std::type_info: `N3foo3BarE` -> `foo::Bar`. Returns "" if it
    is not such a name."""
    return "" if name.startswith("_") else _demangle(name) or ""


def _demangle(name: str) -> Optional[str]:
    """Return the library's text.
    Returns None if `name` is invalid or exceeds a limit, or if there is no library."""
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    call = _cxa_demangle() if within_bounds(data) else None
    shown = call(data) if call is not None else None
    return shown.decode("utf-8", "surrogateescape") if shown is not None and len(shown) <= LONGEST_TEXT else None


def within_bounds(name: bytes) -> bool:
    """Whether the library may be called: the name and its text are short enough, and the call will
    return."""
    return len(name) <= LONGEST and b"\0" not in name and not _ENDLESS.search(name) and estimate(name) <= _LARGEST


def estimate(name: bytes) -> int:
    """Return a rough upper bound on the number of characters of a demangled name.
    If the name consists of letters of builtin types, 20 times as many are possible.

    A substitution S…_ repeats a part of the name that precedes its first occurrence. The length of
    the part is the length at this first occurrence. T_ is a template argument of the function in
    which T_ is *shown*, which may not be the function in which it is read. Therefore the length so
    far is stored as a + b × argument, where b is the number of T…_ so far. If functions are parts
    of the name (Z, for local classes and values), an argument may contain the same parts again,
    with the arguments of the next function. A pack expansion shows its text once for each element
    of the pack.

    The regular expression also finds references in identifiers. These only enlarge the estimate,
    and must not count as first occurrences. Therefore a match that may be in an identifier, or at
    the end of one (two letters), counts as another, larger part each time."""
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
        # cv marks conversion operators, whose type precedes the arguments.
        functions = name.count(b"Z") + name.count(b"cv")
        size = first if functions < 2 else plain
        for _ in range(min(functions, 24) or 1):
            size = (plain + arguments * size) * elements
    return size * max(1, len(_LAST_NAME.findall(name)))


def _identifiers(name: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of every possible identifier, ascending by start. The number before an
    identifier is its length."""
    for match in _NUMBER.finditer(name):
        digits, start = match.group()[-4:], match.end()
        # The last digits of a number may also be a length, if the first digits belong to something
        # else.
        while digits and start + int(digits) > len(name):
            digits = digits[1:]
        yield start, start + int(digits or b"0")


@lru_cache(maxsize=1)
def _cxa_demangle() -> Optional[Callable[[bytes], Optional[bytes]]]:
    """Return the library's function; None if there is no library.
    The function's result is allocated by malloc, and is freed here."""
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
    # This is libc's `free`, even if a preloaded library replaces the malloc that the C++ library
    # calls.
    free = process["free"]
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
