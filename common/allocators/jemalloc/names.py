"""The names of settings and functions in a build of jemalloc.

The prefix given by configure's --with-jemalloc-prefix precedes the names of functions, and in
capitals, the name of the environment variable MALLOC_CONF (jemalloc_internal_defs.h.in,
JEMALLOC_PREFIX and JEMALLOC_CPREFIX; malloc_conf_init in jemalloc.c of 5.0 to 5.3). tikv-jemalloc,
which Rust programs use, has _rjem_ and _RJEM_MALLOC_CONF."""

from __future__ import annotations

import re

from findleaks.target.base import Module, Target

VARIABLE = "MALLOC_CONF"
_NAME = re.compile(rb"\0([A-Z0-9_]{0,64}MALLOC_CONF)\0")
_OVERLAP = 80  # bytes at the end of a piece that are searched again with the next piece


def find_variable(target: Target, module: Module) -> str:
    """Find the name of the environment variable in the library's constants. "" if the constants
    cannot be read."""
    names: set[str] = set()
    for region in target.regions():
        if region.readable and not region.writable and module.start <= region.start < module.end:
            rest = b""
            for piece in target.pieces(region.start, region.end):
                data = rest + bytes(piece.data)
                names.update(name.decode() for name in _NAME.findall(data))
                rest = data[-_OVERLAP:]
    # A program with a prefixed jemalloc may also contain the text MALLOC_CONF.
    return max(sorted(names), key=len, default="")


def rename_settings(words: str, variable: str) -> str:
    """Replace MALLOC_CONF and mallctl in `words` by the names in this build."""
    prefix = variable[: -len(VARIABLE)]
    if not prefix:
        return words
    return words.replace(VARIABLE, variable).replace("mallctl(", f"{prefix.lower()}mallctl(")
