"""Packs series of integers for a page's script.

A value is its difference from the one before, from 0 at first, in zigzag form (2d, or -2d - 1 where
d < 0) plus 1, and 0 where there is none; as LEB128: seven bits a byte, the lowest first, bit 7 set
but in the last. So a figure that does not change takes a byte a moment, which deflate then shrinks.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Optional

LARGEST = 1 << 51
"""Values are clipped to ± this, so that a script's doubles hold each difference exactly."""


def packed(series: Iterable[Sequence[Optional[int]]]) -> str:
    """All series, one after the other: deflated (zlib), in base 64."""
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
