"""The program's conventions for interior pointers: as sentences, and as results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from findleaks.audit.disguises import disguised_pointers
from findleaks.engine.interior_structures import Structure
from findleaks.engine.terms import Heuristic, Totals
from findleaks.formatting import blocks, counted, number, size, some
from findleaks.graph.conventions import BY_CONTENT, Convention, Learned
from findleaks.results.amounts import Amount
from findleaks.results.notes import Heuristics

if TYPE_CHECKING:
    from findleaks.results import note_parts
    from findleaks.session import Session
    from findleaks.session.interior_structures import Recognised

MAX_SIZES = 3

_MEANINGS = {
    "length64": "begin with their own length (length64), and pointers go behind it",
    "newarray": "begin with the count that new T[n] keeps (newarray), and pointers go behind it",
    "stdstring": "begin with the header of an old std::string (stdstring), and pointers go behind it",
    "multipleinheritance": "are held by pointers to a base class's part (multipleinheritance)",
}

STRUCTURES = {
    Structure.HASHBROWN: ("hashbrown", "hash table", "of Rust (HashMap, HashSet)"),
    Structure.SWISS_TABLE: ("swiss-table", "hash table", "of Abseil (flat_hash_map and others)"),
    Structure.CHUNK_AT_END: ("pmr-chunk", "chunk", "of std::pmr::monotonic_buffer_resource"),
    Structure.SAVED_CONTEXT: ("coroutine-stack", "stack", "of suspended coroutines (Boost.Context)"),
    Structure.COROUTINE_FRAME: ("coroutine-frame", "frame", "of C++20 coroutines"),
    Structure.PHP_ARRAY: ("php-array", "hash table", "of PHP (arrays and symbol tables)"),
    Structure.PHP_ARGUMENTS: ("php-arguments", "list", "of arguments of PHP's internal functions"),
    Structure.COUNTED_VALUE: ("arc", "block", "with a value of Rust's Arc or Rc"),
}
"""Structures that are referred to by their inside: name in JSON, what a block is, of what."""


def structure_sentences(found: Iterable[Recognised]) -> Iterator[str]:
    """ "5 hash tables of Rust (HashMap, HashSet): 2.6 MiB" """
    for one in found:
        _, block, of = STRUCTURES[one.structure]
        yield f"{counted(one.blocks, block)} {of}: {size(one.bytes)}"


def structure_phrase(session: Session, index: int) -> str:
    """ "hash table of Rust (HashMap, HashSet), 3 entries in 4 places, held by the word at 0x… that
    points 96 B into it"; "" for a block in use that is in no such structure"""
    found = session.structures.of_block(index)
    if found is None:
        return ""
    structure, offset, where, used, places = found
    _, block, of = STRUCTURES[structure]
    filled = f", {counted(used, 'entry') if used == 1 else f'{number(used)} entries'} in {number(places)} places" if places else ""
    by = f"the word at {where:#x}" if where else "a pointer"
    return f"{block} {of}{filled}, held by {by} that points {number(offset)} B into it"


def sentences(learned: Learned, word: int) -> Iterator[str]:
    """ "1,128 blocks (9.2 MiB) carry a header of 24 B of the program's own", one for each
    convention; `word` is a pointer's size."""
    for name in names(learned.heuristics):
        yield f"blocks that {_MEANINGS[name]} count as held"
    tagged = [one for one in learned.conventions if one.offset < 2 * word and not one.heuristic]
    if len(tagged) > 1:
        every = () if any(not one.sizes for one in tagged) else tuple(sorted({size for one in tagged for size in one.sizes}))
        yield _sentence(
            Convention(1, every, "", sum(one.blocks for one in tagged), sum(one.bytes for one in tagged)),
            "are held by pointers with tags in their low bits",
        )
    for one in learned.conventions:
        if len(tagged) < 2 or one not in tagged:
            yield _sentence(one, _convention(one, word))


def _sentence(one: Convention, what: str) -> str:
    return f"{blocks(one.blocks)} ({size(one.bytes)}){_sizes(one)} {what}"


def _sizes(one: Convention) -> str:
    if not one.sizes:
        return ""
    shown = [number(each) for each in one.sizes[:MAX_SIZES]]
    more = len(one.sizes) - len(shown)
    return f" of {some(shown)} B" if not more else f" of {', '.join(shown)} B and {number(more)} more sizes"


def _convention(one: Convention, word: int) -> str:
    if one.heuristic:
        return _MEANINGS[one.heuristic]
    if one.offset < word:
        return f"are held by pointers {number(one.offset)} B behind their start: tagged pointers, or a header of the program's own"
    if one.sizes:
        return f"are held by pointers {number(one.offset)} B behind their start: a header of the program's own, or links inside"
    return f"carry a header of {number(one.offset)} B of the program's own"


def held_by_interiors(session: Session) -> Totals:
    """Blocks that only recognised structures and conventions make reachable."""
    return Totals.sum_of((session.structures.held, session.learned.held))


def summary(held: Totals) -> str:
    """ "counted as held, though only by interior pointers (--heuristics auto): 31 MiB in 44,153
    blocks", or "" """
    if not held.blocks:
        return ""
    count = f"{size(held.bytes)} in {blocks(held.blocks)}"
    return f"counted as held, though by interior pointers only (--heuristics auto): {count}"


def names(heuristics: Heuristic) -> list[str]:
    """The heuristics' names in memcheck, in the order of its documentation."""
    return [name for name, one in BY_CONTENT.items() if heuristics & one]


def applied_heuristics(session: Session, asked: str) -> Heuristics:
    """The heuristics that `session.graph()` was marked with. `asked`: as the user wrote it."""
    learned = session.learned
    return Heuristics(
        asked,
        applied=names(learned.heuristics),
        conventions=[_convention_result(one) for one in learned.conventions],
        structures=[_structure_result(one) for one in session.structures.found],
        held=Amount.of(held_by_interiors(session)),
        disguised=disguised_pointers(session),
    )


# Many programs have neither: what has these results is imported where it is used.


def _convention_result(one: Convention) -> note_parts.Convention:
    from findleaks.results import note_parts

    return note_parts.Convention(one.offset, one.sizes or None, one.heuristic or None, one.blocks, one.bytes)


def _structure_result(one: Recognised) -> note_parts.Structure:
    from findleaks.results import note_parts

    return note_parts.Structure(STRUCTURES[one.structure][0], one.pointers, one.blocks, one.bytes)
