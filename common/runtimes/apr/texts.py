"""Find the texts that pools contain most often.

A pool does not record which code allocates from it. Its texts, such as the paths of requests or
the keys of a table, show what it is used for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from findleaks.allocators.memory import Memory

SAMPLES, SAMPLE_BYTES = 32, 4096  # places that are read, and bytes of each
SHOWN, COLUMNS = 2, 40  # texts that are returned, and most characters of each
LEAST_SHAPE = 2  # samples in which similar texts must occur
_TEXT = re.compile(rb"(?<![\x20-\x7e])[\x20-\x7e]{6,}(?=\0)")
_NUMBER = re.compile(r"[0-9]+")
_LETTERS = re.compile(r"[A-Za-z]{3}")


def find_texts(memory: Memory, spans: Sequence[tuple[int, int]]) -> Sequence[str]:
    """Return examples of the most frequent texts, in quotes, at most SHOWN. `spans` are the used
    parts of nodes (start, end). Texts that differ only in numbers are similar; those that differ
    come before constant ones."""
    places: dict[str, set[int]] = {}
    texts: dict[str, dict[str, None]] = {}
    starts = frozenset(start for start, _ in spans)
    for number, (start, size) in enumerate(_choose(spans)):
        for found in _TEXT.finditer(memory.read(start, size)):
            text = found[0].decode("ascii")
            # The first text is incomplete if it begins before the place.
            if (found.start() or start in starts) and _LETTERS.search(text):
                shape = _NUMBER.sub("0", text)
                places.setdefault(shape, set()).add(number)
                texts.setdefault(shape, {})[text] = None
    frequent = [shape for shape in places if len(places[shape]) >= LEAST_SHAPE]
    # The position in `places` is that of the first text, so that the order is always the same.
    frequent.sort(key=lambda shape: (len(texts[shape]) < LEAST_SHAPE, -len(places[shape])))
    return [_quote(next(iter(texts[shape]))) for shape in frequent[:SHOWN]]


def _choose(spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return SAMPLES places (start, size), at equal distances in the spans."""
    total = sum(end - start for start, end in spans)
    step = max(total // SAMPLES, SAMPLE_BYTES)
    chosen, before = list[tuple[int, int]](), 0
    for start, end in spans:
        while len(chosen) * step < before + end - start:
            at = start if end - start <= SAMPLE_BYTES else start + len(chosen) * step - before
            chosen.append((at, min(SAMPLE_BYTES, end - at)))
        before += end - start
    return chosen


def _quote(text: str) -> str:
    shown = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown}"' if len(shown) <= COLUMNS else f'"{shown[:COLUMNS]}…"'
