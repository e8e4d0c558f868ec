"""Read the page of `diff -o` without a browser, only from the description of its format."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any, Optional


def unpack_series(data: str, count: int) -> list[list[Optional[int]]]:
    """Unpack a series of `count` values."""
    codes, at, shift = [], 0, 0
    for byte in zlib.decompress(base64.b64decode(data)):
        at |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            codes.append(at)
            at = shift = 0
    found = []
    for first in range(0, len(codes), count):
        values: list[Optional[int]] = []
        before = 0
        for code in codes[first : first + count]:
            if code:
                before += (code - 1) // 2 if code % 2 else -(code // 2)
            values.append(before if code else None)
        found.append(values)
    return found


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


class Page:
    """The content of a page: `meta`, and the bytes and counts of each series."""

    def __init__(self, file: Path) -> None:
        self.text = file.read_text(encoding="utf-8")
        self.meta = json.loads(self._element("application/json"), parse_constant=_no_json)
        columns = iter(unpack_series(self._element("text/plain"), len(self.meta["samples"])))
        self.series = [(next(columns) if has & 2 else None, next(columns) if has & 1 else None) for has in self.meta["series"]]
        assert next(columns, None) is None
        self.categories = {one["word"]: one for one in self.meta["categories"]}

    def _element(self, kind: str) -> str:
        (found,) = re.findall(rf'<script type="{kind}"[^>]*>(.*?)</script>', self.text, re.DOTALL)
        return str(found)

    def rows(self, word: str) -> list[tuple[Any, ...]]:
        """Return section, within, name, bytes and counts, trend, and rate of each row."""
        rows = self.categories[word]["rows"] if word in self.categories else []
        return [(*row[1:4], *self.series[row[5]], self.meta["trends"][row[6]], row[7]) for row in rows]
