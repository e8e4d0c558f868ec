"""Format sizes, numbers, tables and wrapped lines for text output."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Optional

from findleaks.escaping import visible

UNITS = ("KiB", "MiB", "GiB", "TiB")
NO_BREAK = "\u00a0"  # no-break space: `wrap` does not break lines at it


def size(count: int) -> str:
    """Format bytes: "412 B", "1.3 KiB", "256 KiB". At most three digits and one decimal."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    power = -1
    while power < len(UNITS) - 1 and (power < 0 or value >= 999.5):
        value /= 1024
        power += 1
    return f"{value:.1f} {UNITS[power]}" if value < 9.95 else f"{value:.0f} {UNITS[power]}"


def format_amount(amount: int, resident: Optional[int]) -> str:
    """Return the size of memory, and of its resident part if that differs (None: unknown):
    "1.0 GiB (592 KiB of it resident)"."""
    if resident is None or size(resident) == size(amount):
        return size(amount)
    return f"{size(amount)} ({size(resident)} of it resident)"


def number(count: int) -> str:
    """Format a number with separators: "12,345"."""
    return f"{count:,}"


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun: "1 thread", "12,345 threads"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def blocks(count: int) -> str:
    """Format a number of blocks: "1 block", "12,345 blocks"."""
    return format_count(count, "block")


def again(name: str, number: int) -> str:
    """Return the name of the `number`th object with this name, from 1 on: "glibc", "glibc
    (second)"."""
    words = ("second", "third", "fourth", "fifth")
    return name if number < 2 else f"{name} ({words[number - 2] if number < 6 else f'no. {number}'})"


def some(names: Sequence[str], most: int = 3) -> str:
    """Join the first `most` names: "a, b, c and 7 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def join_words(names: Sequence[str]) -> str:
    """Join names: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def with_article(phrase: str) -> str:
    """Put the indefinite article before a phrase: "an indirect block"."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def to_sentence(text: str) -> str:
    """Return `text` with a capital letter and a full stop; "" if it is empty."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def shorten(text: str, limit: int = 200) -> str:
    """Return at most `limit` characters of a text. If some are left out, the last one is "…"."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str, limit: int = 200) -> str:
    """Return text from the target, made `visible` and shortened to `limit` characters."""
    return shorten(visible(text[: limit + 1]), limit)


def character_columns(character: str) -> int:
    """Return the number of columns that a printable character takes on a terminal."""
    return 0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1


def count_columns(text: str) -> int:
    """Return the number of columns that printable text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(character_columns, text))


def cut_columns(text: str, limit: int) -> str:
    """Return at most `limit` columns of a text. If some are left out, it ends with "…"."""
    if count_columns(text) <= limit:
        return text
    ends = enumerate(accumulate(map(character_columns, text)))
    return text[: next(at for at, end in ends if end >= limit)] + "…"


def wrap(text: str, width: int) -> list[str]:
    """Wrap a sentence into lines of at most `width` columns. All lines except the first are
    indented.
    Words are not divided, because addresses must stay whole. Words that are joined by NO_BREAK stay
    on one line. Other characters that are not printable are made `visible`, because textwrap would
    treat some of them as spaces."""
    safe = text if text.isprintable() else NO_BREAK.join(visible(part) for part in text.split(NO_BREAK))
    if len(safe) <= width:
        return [safe.rstrip(" ")] if safe.strip(" ") else []
    import textwrap  # only long sentences need this

    return textwrap.wrap(safe, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def hanging(lead: str, text: str, width: int, most: int = 80) -> Iterator[str]:
    """Wrap a sentence after `lead`.
    Further lines are indented by the width of `lead`, but by at most `most` columns."""
    margin = " " * min(len(lead), most)
    for at, line in enumerate(wrap(text, max(width - len(lead), 20))):
        yield (margin if at else lead) + line.strip()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int], width: int, cut: int = -1) -> list[str]:
    """Return the lines of a table, with two spaces between columns.
    `right`: numbers of the right-aligned columns. `cut`: number of the column that is shortened so
    that lines fit into `width` (-1: none). Cells are made `visible` first, so that widths are those
    that are shown. Characters of East Asian scripts take two columns."""
    body = [list(head), *([visible(cell) for cell in row] for row in rows)]
    wide = [max(count_columns(row[i]) for row in body) for i in range(len(head))]
    over = sum(wide) + 2 * len(wide) - width
    if cut >= 0 and over > 0:
        wide[cut] = max(12, wide[cut] - over)
    to_right = set(right)
    lines = []
    for row in body:
        cells = []
        for i, cell in enumerate(row):
            cell = cut_columns(cell, wide[i])
            space = " " * (wide[i] - count_columns(cell))
            cells.append(space + cell if i in to_right else cell + space)
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def replace_numbers(name: str) -> str:
    """Replace the numbers in the name of a file by "#": "cache-7.bin" becomes "cache-#.bin"."""
    return re.sub("[0-9]+", "#", name)
