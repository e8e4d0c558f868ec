"""Text of `caches`. For each allocator, it contains a headline, the size classes, and their sum. A
summary and suggested commands follow."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional, TypeVar

from findleaks.allocators.base import Arena, Cache, ThreadCache
from findleaks.audit.caches import AllocatorCaches, Amount, sort_arenas, sort_caches, sort_thread_caches, sum_caches
from findleaks.commands import Invocation
from findleaks.formatting import blocks, format_count, number, printable, size, table, wrap

MANY = 40  # Maximum number of rows of a table by arena or thread without --limit.
# The summary mentions an allocator if it has at least this many free bytes, and if they are more
# than half of its mapped bytes.
MIN_KEPT_BYTES = 1 << 20
NONE = "–"  # The text of a cell without a value.
_Row = TypeVar("_Row")
# Matches a range of sizes: lowest and highest size in bytes.
_BAND = re.compile(r"([0-9]+)-([0-9]+)")


# Returns the rows. Its argument is a function that formats a number.
_Rows = Callable[[Callable[[int], str]], Iterable[Sequence[str]]]


def _table(head: Sequence[str], rows: _Rows, width: int, left: int = 1, marked: int = -1, marks: Sequence[str] = ()) -> list[str]:
    """Return lines of at most `width` columns. The first `left` columns are left-aligned. The first
    of `marks` that fits is appended to row number `marked` (-1: none). If lines are too long,
    digits are omitted, then the column TOTAL."""
    for write, without in ((number, ""), (short, ""), (short, "TOTAL")):
        kept = [at for at, name in enumerate(head) if name != without]
        cells = [[row[at] for at in kept] for row in (head, *rows(write))]
        lines = table(cells[0], cells[1:], range(left, len(kept)), width, cut=0)
        if max(map(len, lines)) <= width:
            break
    if marked >= 0:
        line = lines[marked + 1]
        fits = (f"{line}  {mark}" for mark in marks if len(line) + 2 + len(mark) <= width)
        lines[marked + 1] = next(fits, line)
    return lines


def text(found: Sequence[AllocatorCaches], args: argparse.Namespace, width: int, invocation: Invocation) -> Iterator[str]:
    if not found:
        yield "no allocator found: there are no size classes to list"
        return
    for holding in found:
        yield from wrap(headline(holding), width)
        yield ""
        if not _without_memory(holding):
            yield from _tables(holding, args, width)
    yield from _summary(found, width)
    yield from invocation.next(*_next(found, args))


def _without_memory(holding: AllocatorCaches) -> bool:
    """Whether the allocator has no memory. glibc's usually has none if another malloc replaces
    it."""
    return not holding.mapped and not holding.total.total


def _tables(holding: AllocatorCaches, args: argparse.Namespace, width: int) -> Iterator[str]:
    if args.by_arena:
        yield from _arenas(holding, args, width)
    if args.by_thread:
        yield from _threads(holding, args, width)
    if args.by_arena or not args.by_thread:
        yield from _classes(holding, args, width)


def headline(holding: AllocatorCaches) -> str:
    """Return a line such as "glibc 2.36 in libc.so.6, 16 arenas: 3.5 MiB in use, 120 KiB in thread
    caches, 239 MiB free and not returned, 1.1 MiB spare"."""
    allocator, total = holding.allocator, holding.total
    named = printable(holding.name + (f" in {allocator.where}" if allocator.where else ""))
    if _without_memory(holding):
        return f"{named}: holds no memory"
    if holding.arena_count:
        named += f", {format_count(holding.arena_count, 'arena')}"
    parts = (
        (total.in_use_bytes, "in use"),
        (total.cached_bytes, "in thread caches"),
        (total.free_bytes, "free and not returned"),
        (holding.spare, "spare"),
        (holding.lent, "used by other allocators"),
    )
    return f"{named}: " + ", ".join(f"{size(held)} {what}" for held, what in parts if held or what in ("in use", "free and not returned"))


def _classes(holding: AllocatorCaches, args: argparse.Namespace, width: int) -> Iterator[str]:
    filled = [cache for cache in sort_caches(holding.caches, args.sort) if cache.total or cache.allocs or cache.memory]
    rows, more = _cut(filled, args, args.by_arena)
    counts = [name for name in ("allocs", "fails") if any(getattr(cache, name) is not None for cache in holding.caches)]
    named = any(cache.size and cache.name != str(cache.size) for cache in rows)
    left = ["ARENA"] * args.by_arena + ["NAME"] * named
    head = [*left, "SIZE", "IN USE", "THREAD", "FREE", "TOTAL", "MEMORY", "USED", *(name.upper() for name in counts)]

    def cells(write: Callable[[int], str]) -> Iterator[Sequence[str]]:
        for cache in rows:
            own = [printable(cache.arena) or NONE] * args.by_arena + [printable(cache.name)] * named + [size_name(cache.name, cache.size)]
            yield [*own, *_amounts(sum_caches([cache]), write), *(_write_count(getattr(cache, name), write) for name in counts)]
        if len(filled) > 1:
            sums = [sum(getattr(cache, name) or 0 for cache in holding.caches) for name in counts]
            yield [*([""] * len(left)), "all", *_amounts(holding.total, write), *map(write, sums)]

    if rows:
        most = max(filled, key=lambda cache: cache.memory)
        share = percent(most.memory, holding.total.memory)
        marks = (f"← {share} of the memory", f"← {share}", "←")
        worth = len(filled) > 1 and (not args.by_arena or most.memory * 4 > holding.total.memory)
        yield from _table(head, cells, width, len(left), rows.index(most) if most in rows and worth else -1, marks)
    one, many = ("row", "rows") if args.by_arena else ("size class", "size classes")
    yield from _left_out(more, one, many, len(holding.caches) - len(filled))
    yield ""


def _arenas(holding: AllocatorCaches, args: argparse.Namespace, width: int) -> Iterator[str]:
    if not holding.arenas:
        yield f"  {printable(holding.allocator.name)} has no arenas"
        yield ""
        return
    arenas = sort_arenas(holding.arenas, args.sort)
    rows, more = _cut(arenas, args, True)
    spare = any(arena.spare for arena in holding.arenas)
    head = ["ARENA", "IN USE", "THREAD", "FREE", *(["SPARE"] * spare), "MAPPED", "USED"]

    def cells(write: Callable[[int], str]) -> Iterator[Sequence[str]]:
        for arena in rows:
            yield _arena(arena, spare)
        if len(arenas) > 1:
            in_use, cached, free = (sum(getattr(arena, name) for arena in arenas) for name in ("in_use", "cached", "free"))
            yield _arena(Arena("all", in_use, cached, free, holding.mapped, {}, holding.spare), spare)

    yield from _table(head, cells, width)
    yield from _left_out(more, "arena", "arenas")
    yield ""


def _arena(arena: Arena, spare: bool) -> Sequence[str]:
    kept = [_size(arena.spare)] * spare
    used = percent(arena.in_use, arena.mapped)
    return [printable(arena.name), _size(arena.in_use), _size(arena.cached), _size(arena.free), *kept, size(arena.mapped), used]


def _threads(holding: AllocatorCaches, args: argparse.Namespace, width: int) -> Iterator[str]:
    if not holding.threads:
        yield f"  no thread caches of {printable(holding.allocator.name)} with blocks in them"
        yield ""
        return
    threads: dict[tuple[int, int], list[ThreadCache]] = {}
    classes = sort_thread_caches(holding.threads, args.sort)
    for kept in classes:
        threads.setdefault((kept.thread, kept.address if not kept.thread else 0), []).append(kept)
    sums = [(_thread(each[0]), len(each), sum(k.blocks for k in each), sum(k.bytes for k in each)) for each in threads.values()]
    if args.sort != "size":
        sums.sort(key=lambda one: -one[3])
    shown, more = _cut(sums, args, True)

    def whole(write: Callable[[int], str]) -> Iterator[Sequence[str]]:
        for thread, sizes, count, held in shown:
            yield [thread, write(sizes), write(count), size(held)]
        if len(sums) > 1:
            yield ["all", "", write(sum(one[2] for one in sums)), size(sum(one[3] for one in sums))]

    yield from _table(["THREAD", "SIZES", "BLOCKS", "BYTES"], whole, width)
    yield from _left_out(more, "thread", "threads")
    yield ""
    rows, more = _cut(classes, args, True)

    def parts(write: Callable[[int], str]) -> Iterator[Sequence[str]]:
        for kept in rows:
            yield [_thread(kept), size_name(kept.name, kept.size), write(kept.blocks), size(kept.bytes)]

    yield from _table(["THREAD", "SIZE", "BLOCKS", "BYTES"], parts, width)
    yield from _left_out(more, "row", "rows")
    yield ""


def _summary(found: Sequence[AllocatorCaches], width: int) -> Iterator[str]:
    """Yield a sentence about all allocators, and one about each allocator with much free memory
    (MIN_KEPT_BYTES)."""
    total = Amount(*map(sum, zip(*(holding.total for holding in found))))
    mapped = sum(holding.mapped - holding.lent for holding in found)
    line = f"{blocks(total.in_use)} in use: {size(total.in_use_bytes)} of the {size(mapped)} that"
    busy = [holding for holding in found if not _without_memory(holding)] or found
    names = list(dict.fromkeys(printable(holding.allocator.name) for holding in busy))
    yield from _indent(
        f"{line} {' and '.join(names)} {'has' if len(names) == 1 else 'have'} mapped ({percent(total.in_use_bytes, mapped)})", width
    )
    for holding in found:
        if holding.kept > max(holding.mapped // 2, MIN_KEPT_BYTES):
            cached = f", {size(holding.total.cached_bytes)} of it in thread caches" if holding.total.cached_bytes else ""
            share = percent(holding.kept, holding.mapped)
            words = f"{printable(holding.allocator.name)} keeps {size(holding.kept)} ({share}) unused{cached}: free, not leaked"
            yield from _indent(words, width)


def _next(found: Sequence[AllocatorCaches], args: argparse.Namespace) -> Iterator[str]:
    """Yield suggested commands: `caches` sorted by memory, and `blocks` for the size class with the
    most bytes in use."""
    largest = max(found, key=lambda holding: holding.mapped)
    only = f" --allocator {largest.allocator.name}" if len(found) > 1 and largest.allocator.name.isidentifier() else ""
    if args.sort == "size" and not args.by_thread:
        way = "--by-arena --sort" if args.by_arena else "--sort"
        yield f"caches {way} {'free' if largest.kept > largest.mapped // 2 else 'memory'} --limit 10{only}"
    if not args.by_arena and len(largest.arenas) > 1:
        yield f"caches --by-arena{only}"
    if not args.by_thread and largest.threads:
        yield f"caches --by-thread{only}"
    most = max(largest.caches, key=lambda cache: cache.in_use_bytes, default=None)
    sizes = _range(most) if most is not None and most.in_use else ""
    if sizes:
        yield f"blocks --size {sizes}{only}"
    yield "find"


def _range(cache: Cache) -> str:
    """Return the size class as an argument of `blocks --size`; "" if its bounds are unknown."""
    return str(cache.size) if cache.size else cache.name if _BAND.fullmatch(cache.name) else ""


def _cut(rows: Sequence[_Row], args: argparse.Namespace, many: bool) -> tuple[Sequence[_Row], int]:
    """Return the rows to print, and the number of rows left out."""
    limit = args.limit if args.limit is not None else MANY if many else 0
    return (rows, 0) if limit <= 0 or len(rows) <= limit else (rows[:limit], len(rows) - limit)


def _left_out(more: int, one: str, many: str, empty: int = 0) -> Iterator[str]:
    if more:
        yield f"  … {number(more)} more {one if more == 1 else many} (--limit 0 shows all)"
    if empty:
        yield f"  {number(empty)} {one if empty == 1 else many} without blocks not shown"


def size_name(name: str, bytes_: int) -> str:
    """Return the text of the column SIZE: "48", "2–4 KiB" for the range 2048-4095, or the name of a
    class of several sizes."""
    band = _BAND.fullmatch(name)
    if bytes_ or band is None:
        return number(bytes_) if bytes_ else printable(name)
    low, above = int(band[1]), int(band[2]) + 1
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if low >> power and above >> power >= 2 * (low >> power):
            return f"{low >> power}–{above >> power} {unit}"
    return f"{number(low)}–{number(above - 1)}"


def percent(part: int, whole: int) -> str:
    """Return a percentage, rounded down: "89 %"; "<1 %" for less than one percent; a dash if
    `whole` is 0."""
    if not whole:
        return NONE
    share = part * 100 // whole
    return f"{share} %" if share or not part else "<1 %"


def short(count: int) -> str:
    """Return a number in at most six columns: "9,999", "12.3 k", "456 M"."""
    if count < 10000:
        return number(count)
    value, units = count / 1000, iter("kMGTPE")
    unit = next(units)
    while value >= 999.5:
        value, unit = value / 1000, next(units)
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def _amounts(held: Amount, write: Callable[[int], str]) -> Sequence[str]:
    counts = [write(count) if count else NONE for count in (held.in_use, held.cached, held.free)]
    return [*counts, write(held.total), size(held.memory), percent(held.in_use_bytes, held.bytes)]


def _write_count(count: Optional[int], write: Callable[[int], str]) -> str:
    return NONE if count is None else write(count)


def _size(bytes_: int) -> str:
    return size(bytes_) if bytes_ else NONE


def _thread(kept: ThreadCache) -> str:
    return str(kept.thread) if kept.thread else printable(kept.owner) or "unknown"


def _indent(sentence: str, width: int) -> list[str]:
    return ["  " + line for line in wrap(sentence, width - 2)]
