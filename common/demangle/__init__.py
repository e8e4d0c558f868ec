"""C++ names as people write them, from the mangled names in symbol tables and in RTTI.

Source: the Itanium C++ ABI, section 5.1 "External Names (a.k.a. Mangling)", https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling.
Written in Python because the names come out of hostile memory: C demanglers have crashed on made-up names, and a crash here would take
the debugger along. Depth and output are bounded, so the worst a name can do is to stay mangled.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Optional

from findleaks.demangle.names import Names
from findleaks.demangle.reader import LONGEST, BadName

_CLONE = re.compile(r"\.[A-Za-z_][A-Za-z_0-9]*(?:\.[0-9]+)*|\..*")


@lru_cache(maxsize=8192)
def demangle(name: str) -> str:
    """`_ZN3foo3barEi` -> `foo::bar(int)`; a name that is not mangled, or that cannot be read, comes back as it is."""
    if not name.startswith("_Z"):
        return name
    plain, _, _ = name.partition("@")
    shown = _attempt(plain, 2, True)
    return name if shown is None else shown + name[len(plain) :]


@lru_cache(maxsize=8192)
def demangle_type(name: str) -> str:
    """A type's mangled name as std::type_info holds it (`N3foo3BarE` -> `foo::Bar`); "" when it is none."""
    return _attempt(name, 0, False) or ""


def _attempt(name: str, start: int, encoding: bool) -> Optional[str]:
    if len(name) > LONGEST:
        return None
    parser = Names(name, start)
    try:
        shown = parser.encoding() if encoding else "".join(parser.type())
        rest = name[parser.at :]
        if encoding and rest.startswith("."):
            return shown + "".join(f" [clone {part}]" for part in _CLONE.findall(rest))
        return None if rest else shown
    except (BadName, IndexError, RecursionError):
        return None
