"""Text of `roots`: what each root retains. Fields are indented below their owners."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.answers.roots import DEPTH, Shown
from findleaks.audit.retained_rows import RetainedNode
from findleaks.commands import Invocation
from findleaks.engine.terms import Totals
from findleaks.escaping import visible
from findleaks.formatting import blocks, format_count, number, shorten, size, some
from findleaks.quoting import shell_quoted

_Line = tuple[str, str, str]  # The cells of a row: retained bytes, number of blocks, owner.


def text(shown: Shown, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield all lines of the text. Long lines continue on indented lines."""
    if shown.heaps:
        # Few processes have such a heap, so this is imported here.
        from findleaks.commands.heap_roots_text import text as heap_text

        yield from heap_text(shown.heaps, shown.limit, width, shown.shared is not None)
        if not shown.rows:
            yield ""
            yield from invocation.next("runtime", "stacks")
            return
        yield ""
    what = "leaked" if shown.lost else "reached from the roots"
    yield f"{blocks(shown.total.blocks)} {what}, {size(shown.total.bytes)}"
    if shown.held:
        yield f"retained by {shown.held}"
    yield ""
    lines: list[_Line] = []
    first = shown.rows[: shown.limit or None]
    shared = [shown.shared] if shown.shared is not None and shown.shared.totals.blocks else []
    for row in sorted([*first, *shared], key=lambda row: -row.totals.bytes):
        lines += _lines(row, 0)
    rest = shown.rows[len(first) :]
    if rest:
        lines.append(_line(Totals.sum_of(row.totals for row in rest), f"{format_count(len(rest), 'more root')} (--limit 0: all)"))
    if shown.rest.blocks:
        lines.append(_line(shown.rest, "other leaked blocks (--limit 0: all)"))
    if not lines:
        yield "  nothing"
        return
    wide = max(12, max(len(line[0]) for line in lines)), max(8, max(len(line[1]) for line in lines))
    yield f"  {'RETAINS':>{wide[0]}}  {'BLOCKS':>{wide[1]}}  {'LEAK' if shown.lost else 'ROOT'}"
    for retained, count, phrase in lines:
        head = f"  {retained:>{wide[0]}}  {count:>{wide[1]}}  "
        yield from _wrap_phrase(head, phrase, width)
    if shown.left:
        yield f"  {format_count(shown.left, 'more root')} of that name (--limit 0: all)"
    yield ""
    yield from invocation.next(*_next(shown))


def _lines(row: RetainedNode, level: int) -> Iterator[_Line]:
    indent = "" if level == 0 else "  " * level + "└ "
    name, what = shorten(row.name), shorten(row.what)
    phrase = f"{name}: {what}" if what and not name.startswith(f"{what} at ") else name
    if row.holders:
        phrase += f" ← {some(row.holders)}"
    yield _line(row.totals, indent + phrase)
    shared = list(_shared_lines(row, level + 1))
    shared_first = bool(shared) and row.shared.bytes > max((child.totals.bytes for child in row.fields), default=0)
    if shared_first:
        yield from shared
    for child in row.fields:
        yield from _lines(child, level + 1)
    if row.fields and row.left and row.more.blocks:
        fields = format_count(row.left, "more field") if row.sort != "shared" else "more"
        yield _line(row.more, "  " * (level + 1) + f"└ {fields}")
    if not shared_first:
        yield from shared


def _shared_lines(row: RetainedNode, level: int) -> Iterator[_Line]:
    """Yield lines about memory that is reached through several fields of a row: its amount, then
    its largest blocks."""
    if (row.fields or row.shared_rows) and row.shared.blocks:
        yield _line(row.shared, "  " * level + "└ reached through several fields")
        for one in row.shared_rows:
            yield from _lines(one, level + 1)


def _line(totals: Totals, phrase: str) -> _Line:
    return size(totals.bytes), number(totals.blocks), phrase


def _wrap_phrase(head: str, phrase: str, width: int) -> Iterator[str]:
    """Wrap a row. Its continuation lines are indented like its text."""
    import textwrap

    inner = len(phrase) - len(phrase.lstrip(" └")) + 2
    available = max(width - len(head), 40)
    parts = textwrap.wrap(visible(phrase), available, subsequent_indent=" " * inner, break_long_words=False, break_on_hyphens=False)
    for at, part in enumerate(parts or [phrase]):
        yield (" " * len(head) if at else head) + part


def _count_levels(row: RetainedNode) -> int:
    """Return the number of levels of a row's tree, including the row."""
    return 1 + max(map(_count_levels, row.fields), default=0)


def _next(shown: Shown) -> list[str]:
    """Return suggested commands: the path to a shared block, or the largest shared block; and the
    largest root with more levels."""
    made = []
    if shown.shared is not None and shown.shared.address:
        made.append(f"path {shown.shared.address:#x}")
    first = shown.shared.fields[0] if shown.shared is not None and shown.shared.fields else None
    if first is not None and first.address and first.totals.bytes >= max((row.totals.bytes for row in shown.rows), default=0):
        made.append(f"roots {first.address:#x}")
    row = shown.rows[0] if shown.rows else None
    if row is not None and row.owner is not None:
        # Of a single root, all fields are shown. Of several, the small ones are left out.
        if row.owner.word and (_count_levels(row) > shown.depth or (row.left and len(shown.rows) > 1)):
            made.append(f"roots {shell_quoted(row.owner.word)} --depth {shown.depth + DEPTH}")
        elif row.owner.ranges:
            made.append(f"whatis {row.owner.ranges[0].start:#x}")
    elif row is not None and row.address:
        made += [f"whatis {row.address:#x}", f"path {row.address:#x}"]
    return made or ["find" if shown.lost else "verdict"]
