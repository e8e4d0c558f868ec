"""C++ symbol names for people. The C++ library's own demangler where one is at hand, else plain nested names only."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Optional

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_SPECIAL = {"TV": "vtable for ", "TT": "VTT for ", "TI": "typeinfo for ", "TS": "typeinfo name for "}
_LENGTH = re.compile(r"\d+")


class _Demangler:
    """__cxa_demangle of the Itanium C++ ABI (section 3.4), looked for when first needed. Inside a debugger the process itself
    has it, as GDB and LLDB are C++ programs."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._looked = False
        self._function: Optional[Any] = None
        self._free: Optional[Any] = None

    def _look(self) -> None:
        self._looked = True
        for name in (None, *_LIBRARIES):
            try:
                library = ctypes.CDLL(name)
                function = library["__cxa_demangle"]  # as an attribute Python would take the two underscores for a class's own
                free = ctypes.CDLL(None).free
            except (OSError, AttributeError):
                continue
            function.restype = ctypes.c_void_p
            function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
            free.argtypes, free.restype = [ctypes.c_void_p], None
            self._function, self._free = function, free
            return

    def __call__(self, name: str) -> str:
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = self._demangle(name)
        return found

    def _demangle(self, name: str) -> str:
        if not self._looked:
            self._look()
        if self._function is None or self._free is None:
            return plain(name) or name
        status = ctypes.c_int(0)
        memory = self._function(name.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
        if not memory:
            return name
        try:
            return (ctypes.string_at(memory) or b"").decode("utf-8", "replace")
        finally:
            self._free(memory)


_demangler = _Demangler()


def demangle(name: str) -> str:
    """The readable form of an Itanium-mangled C++ name ("_ZTV3Foo" -> "vtable for Foo"); any other name as it is."""
    if not name.startswith("_Z"):
        return name
    if len(name) > 1 << 14:  # a corrupt string table; the demangler recurses
        return name
    return _demangler(name)


def plain(name: str) -> str:
    """The fallback: nested plain names, with or without a special prefix, no templates, operators or substitutions.
    Functions lose their parameters. "" when the name is more than that."""
    rest = name[2:]
    prefix = _SPECIAL.get(rest[:2], "")
    if prefix:
        rest = rest[2:]
    nested = rest.startswith("N")
    if nested:
        rest = rest[1:].lstrip("rVK")
    parts = []
    while True:
        if rest.startswith("St"):
            parts.append("std")
            rest = rest[2:]
            continue
        match = _LENGTH.match(rest)
        if match is None:
            break
        length = int(match.group()) if len(match.group()) < 6 else 1 << 20
        part = rest[match.end() : match.end() + length]
        if len(part) != length:
            return ""
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part)
        rest = rest[match.end() + length :]
        if not nested and parts[0] != "std":
            break
    if nested:
        if rest[:2] in ("C1", "C2", "D0", "D1", "D2") and parts:
            parts.append(("~" if rest[0] == "D" else "") + parts[-1])
            rest = rest[2:]
        if not rest.startswith("E"):
            return ""
        rest = rest[1:]
    if not parts or (prefix and rest) or "I" in rest[:1]:
        return ""
    return prefix + "::".join(parts)
