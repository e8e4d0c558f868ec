"""Pack series of integers for a page's script.

A value is stored as its difference from the previous value (initially 0), in zigzag form (2d, or
-2d - 1 if d < 0) plus 1; 0 means no value. Numbers are LEB128: seven bits per byte, lowest first,
bit 7 set except in the last byte. Example: 5, 5, none, 4 is stored as 11, 1, 0, 2. An unchanged
figure takes one byte per sample, which deflate shrinks."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Optional

LARGEST = 1 << 51
"""Values beyond ± this number are replaced by it, so that a script's double can represent each
difference exactly."""


def pack_series(series: Iterable[Sequence[Optional[int]]]) -> str:
    """Pack all series, one after the other. The result is deflated (zlib) and in base 64."""
    out = bytearray()
    for values in series:
        _append(out, values)
    return base64.b64encode(zlib.compress(out, 6)).decode("ascii")


def _append(out: bytearray, values: Sequence[Optional[int]]) -> None:
    before = 0
    for value in values:
        if value is None:
            out.append(0)
        elif value == before:
            out.append(1)
        else:
            value = max(-LARGEST, min(LARGEST, value))
            step, before = value - before, value
            code = (2 * step if step >= 0 else -2 * step - 1) + 1
            while code > 127:
                out.append(code & 127 | 128)
                code >>= 7
            out.append(code)
