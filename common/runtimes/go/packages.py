"""Distinguish functions of Go's standard library from functions of the program, by their names.

Source: Go 1.18 to 1.26, src: the folders of the standard library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from findleaks.runtimes.user_threads import own_frame
from findleaks.unwind.stacks import NamedFrame

# The first element of the import path of each package, and what may follow: the rest of the path,
# or the name of a function, which may have type arguments. "go.uber.org/zap.New" must not match.
# Neither must "plugin/unnamed-0123456789abcdef.Start", a function of a plugin built from a file.
_LIBRARY = re.compile(
    r"(?:archive|bufio|bytes|cmp|compress|container|context|crypto|database|debug|embed|encoding|errors|expvar|flag|fmt|go|hash|html|"
    r"image|index|internal|io|iter|log|maps|math|mime|net|os|path|plugin(?!/)|reflect|regexp|runtime|slices|sort|strconv|strings|structs|"
    r"sync|syscall|testing|text|time|unicode|unique|unsafe|vendor|weak)(?:/|\.[^/\[]*(?:\[|$))"
)
_OUTERMOST = "runtime.goexit"


def is_library(function: str) -> bool:
    """Whether a function belongs to the standard library: "net/http.(*conn).serve"."""
    return _LIBRARY.match(function) is not None


def find_own_frame(frames: Sequence[NamedFrame]) -> Optional[NamedFrame]:
    """Return the innermost frame that is not in the standard library; None if there is no frame.

    If all frames are in the library, return the outermost one outside the package runtime: its
    function, such as net/http.(*persistConn).readLoop, shows the purpose of the goroutine. If all
    frames are in the package runtime, return the outermost one except runtime.goexit."""
    own = own_frame(frames, is_library)
    if own is None or not is_library(own.function):
        return own
    outside = (one for one in reversed(frames) if not one.function.startswith("runtime."))
    return next(outside, None) or next((one for one in reversed(frames) if one.function != _OUTERMOST), own)
