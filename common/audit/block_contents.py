"""Describe the contents of blocks without a type, for the rows of `find`, `blocks`, `roots` and
`triage`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from re import Pattern

from findleaks.audit.block_type import find_block_type
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, State
from findleaks.errors import UnreadableMemory
from findleaks.formatting import number, shorten
from findleaks.session import Session

WORDS = 128  # words at the start of a block that are followed to other blocks
WEAK_TYPES = ("function ", "code in ", "table ", "class ")
"""Prefixes of type names that describe only the first word of a block. These types are not C++
classes, so blocks of other types may begin with the same word."""
# Text that ends with a zero byte, and is longer than a number could be
_TEXT = re.compile(rb"[ -~]{8,}\0")
HINT = 64  # bytes at the start of a block in which text is searched
SampleKey = tuple[Kind, int, bool]  # kind, size, whether indirect blocks are below
SAMPLES = 8  # blocks of a group that are compared
_EXAMINED = 10_000  # blocks that are examined to find samples
_STACK = 8192  # bytes; smaller blocks are not tested for the stack of a coroutine
_SHOWN = 2  # referenced blocks that are named


def describe_contents(session: Session, address: int, size: int) -> str:
    """Return what a block of unknown type contains, safe to print; "" if unknown.

    The result is the first of these that applies: an object of a known library, a pointer to a
    library's function or table ("→ inflate, libz.so.1"), the stack of a coroutine ("stack of
    serve"), or the contents of the blocks to which this block refers ("→ FILE")."""
    found = session.types.contents.describe(address, size) or _describe_stack(session, address, size)
    return found or _describe_referents(session, address, size)


def _describe_stack(session: Session, address: int, size: int) -> str:
    if size < _STACK:
        return ""
    # Few processes have such blocks, so this is imported here.
    from findleaks.audit.mapping_contents import find_stack_function

    name = find_stack_function(session, address, address + size, True)
    return f"stack of {name}" if name else ""


def take_samples(places: Sequence[int]) -> tuple[int, ...]:
    """Return at most SAMPLES of the places, among them the first and the last, at equal
    distances."""
    last = len(places) - 1
    return tuple(places[at * last // (SAMPLES - 1)] for at in range(SAMPLES)) if last >= SAMPLES else tuple(places)


def sample_blocks(session: Session, graph: Graph, pattern: Pattern[bytes]) -> dict[SampleKey, list[int]]:
    """Return addresses of blocks whose kinds match `pattern`, which have no type and are in no
    cycle: for each key at most one from each of SAMPLES parts of the heap. A heap may have millions
    of leak heads, so only some are examined."""
    blocks, kinds, has_cycles = session.directory.blocks, graph.kinds(), graph.has_cycles()
    found: dict[SampleKey, list[int]] = {}
    for part in range(SAMPLES):
        taken = set[SampleKey]()
        for match in islice(pattern.finditer(kinds, part * len(kinds) // SAMPLES), _EXAMINED // SAMPLES):
            index = match.start()
            key = Kind(kinds[index]), blocks.size(index), graph.indirect_totals(index).blocks > 0
            if key in taken or (has_cycles and graph.cycle(index) != 1) or find_block_type(session, index):
                continue
            taken.add(key)
            found.setdefault(key, []).append(blocks.address(index))
    return {key: sorted(set(starts)) for key, starts in found.items()}


def divide_by_object(session: Session, starts: Sequence[int], size: int, type_name: str) -> dict[str, list[int]]:
    """Return the blocks at `starts`, which have the same size and type, by the known library's
    object that they contain; "" for none. All blocks are examined if one of the samples contains
    such an object."""
    name_object = session.types.contents.name_object
    is_open = not type_name or type_name.startswith(WEAK_TYPES)
    if not is_open or not any(name_object(start, size) for start in take_samples(starts)):
        return {"": list(starts)}
    parts: dict[str, list[int]] = {}
    for start in starts:
        parts.setdefault(name_object(start, size), []).append(start)
    return parts


def agree_on_contents(session: Session, samples: Iterable[tuple[int, int]], type_name: str, hint: str) -> str:
    """Return what the blocks of a group contain, from `describe_more` of some of its blocks
    (address, size). If these blocks differ, the result describes the first one that is known, and
    begins with "e.g."."""
    first, count = "", 0
    for count, (address, size) in enumerate(samples):
        found = describe_more(session, address, size, type_name, hint)
        if found != first and count:
            return f"e.g. {first or found}"
        first = found
    return first


def describe_more(session: Session, address: int, size: int, type_name: str, hint: str) -> str:
    """Return what a block contains beyond its type and hint; "" if nothing more is known.
    A type such as "function f" describes only the first word of a block, so its other words are
    examined."""
    if not type_name:
        return "" if is_text(hint) else describe_contents(session, address, size)
    return session.types.contents.name_object(address, size) if type_name.startswith(WEAK_TYPES) else ""


def describe_untyped(session: Session, address: int, size: int) -> str:
    """Return the text at the start of a block; if it has no text, its contents or "zeros"; "" if
    nothing is known."""
    hint = find_hint(session, address, size)
    return hint if is_text(hint) else describe_contents(session, address, size) or hint


def find_hint(session: Session, start: int, size: int) -> str:
    """Return a readable string at the beginning of a block, "zeros", or ""."""
    try:
        return session.types.hint(session.target.read(start, min(size, HINT)))
    except UnreadableMemory:
        return ""


def find_text(session: Session, start: int, size: int) -> str:
    """Return the first text in the first page of a mapping, with its offset: '"order 0" at offset
    40'; "" if there is none."""
    try:
        data = bytes(session.target.read(start, min(size, session.target.arch.page)))
    except UnreadableMemory:
        return ""
    found = _TEXT.search(data)
    return f'"{shorten(found[0][:-1].decode("ascii"), HINT)}" at offset {number(found.start())}' if found is not None else ""


def is_text(hint: str) -> bool:
    """Whether a hint is text, possibly after a first word."""
    return hint.endswith(('"', "…"))


def _describe_referents(session: Session, address: int, size: int) -> str:
    word = session.target.arch.word
    words = session.types.memory.words(address, min(size // word, WORDS)) or ()
    blocks, names = session.directory.blocks, list[str]()
    for value in words:
        found = blocks.lookup(value) if value else None
        if found is None or found[1] != value or found[3] != State.IN_USE or value == address:
            continue
        name = _name_referent(session, found[0], found[1], found[2])
        if name and name not in names:
            names.append(name)
            if len(names) == _SHOWN:
                break
    return f"→ {', '.join(names)}" if names else ""


def _name_referent(session: Session, index: int, start: int, size: int) -> str:
    name = find_block_type(session, index)
    if name:
        return name
    hint = find_hint(session, start, size)
    return hint if hint.startswith('"') else session.types.contents.name_object(start, size)
