"""Describe the conventions for interior pointers that a program follows, as sentences and as typed
results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from findleaks.audit.disguises import disguised_pointers
from findleaks.engine.interior_structures import Structure
from findleaks.engine.terms import Heuristic, Totals
from findleaks.formatting import blocks, format_count, number, size, some
from findleaks.graph.conventions import BY_CONTENT, Convention, Learned
from findleaks.results.amounts import Amount
from findleaks.results.notes import Heuristics

if TYPE_CHECKING:
    from findleaks.results import note_parts
    from findleaks.session import Session
    from findleaks.session.interior_structures import Recognised

MAX_SIZES = 3

_MEANINGS = {
    "length64": "begin with their length (length64) and are referenced behind it",
    "newarray": "begin with the element count of new T[n] (newarray) and are referenced behind it",
    "stdstring": "begin with the header of an old std::string (stdstring) and are referenced behind it",
    "multipleinheritance": "are referenced at the part of a base class (multipleinheritance)",
}
_COUNTED = "begin with a number that can be an element count (newarray) and are referenced behind it"
"""This text replaces the meaning of newarray if the elements do not show that the block is from
`new T[n]`."""

STRUCTURES = {
    Structure.HASHBROWN: ("hashbrown", "hash table", "of Rust (HashMap, HashSet)"),
    Structure.SWISS_TABLE: ("swiss-table", "hash table", "of Abseil (flat_hash_map and others)"),
    Structure.CHUNK_AT_END: ("pmr-chunk", "chunk", "of std::pmr::monotonic_buffer_resource"),
    Structure.SAVED_CONTEXT: ("coroutine-stack", "stack", "of suspended coroutines (Boost.Context)"),
    Structure.COROUTINE_FRAME: ("coroutine-frame", "frame", "of C++20 coroutines"),
    Structure.PHP_ARRAY: ("php-array", "hash table", "of PHP (arrays and symbol tables)"),
    Structure.PHP_ARGUMENTS: ("php-arguments", "list", "of arguments of PHP's functions"),
    Structure.PHP_OBJECT: ("php-object", "object", "of PHP's internal classes"),
    Structure.COUNTED_VALUE: ("arc", "block", "with a value of Rust's Arc or Rc"),
    Structure.ALIGNED: ("aligned", "block", "with memory that the program aligned by itself"),
    Structure.TAGGED_START: ("tagged", "block", "referenced by pointers with tags in the low bits"),
    Structure.LINK: ("linked", "block", "with links of a list or tree inside"),
    Structure.EXCEPTION: ("exception", "exception", "of C++"),
    Structure.STRING: ("stdstring", "string", "of libstdc++'s old ABI, referenced by pointers to the text"),
    Structure.BUMP_CHUNK: ("bump-chunk", "chunk", "of Rust's bumpalo"),
}
"""Structures that are referenced by interior pointers: name in JSON, word for a block, and
owner."""


def describe_structures(found: Iterable[Recognised]) -> Iterator[str]:
    """Yield sentences such as "5 hash tables of Rust (HashMap, HashSet): 2.6 MiB"."""
    for one in found:
        _, block, of = STRUCTURES[one.structure]
        yield f"{format_count(one.blocks, block)} {of}: {size(one.bytes)}"


def describe_structure_of_block(session: Session, index: int) -> str:
    """Describe the structure in a block: "hash table of Rust (HashMap, HashSet), 3 entries in 4
    places, referenced by the word at 0x…, 96 B behind its start".
    Returns "" for a block that contains no recognised structure."""
    found = session.structures.of_block(index)
    if found is None:
        return ""
    structure, offset, where, _, _ = found
    by = f"the word at {where:#x}" if where else "a pointer"
    if structure == Structure.TAGGED_START:
        return f"referenced by {by}, which has the tag {offset} in its low bits"
    return f"{name_structure_of_block(session, index)}, referenced by {by}, {number(offset)} B behind its start"


def name_structure_of_block(session: Session, index: int) -> str:
    """Return the name of the structure in a block, and how full it is: "hash table of Rust
    (HashMap, HashSet), 3 entries in 4 places"; "" if no structure was recognised."""
    found = session.structures.of_block(index)
    if found is None:
        return ""
    structure, _, _, used, places = found
    _, block, of = STRUCTURES[structure]
    filled = f", {format_count(used, 'entry') if used == 1 else f'{number(used)} entries'} in {number(places)} places" if places else ""
    return f"{block} {of}{filled}"


def describe_conventions(learned: Learned, word: int) -> Iterator[str]:
    """Yield one sentence for each convention of the program: "1,128 blocks (9.2 MiB) have a header
    of 24 B that the program added".
    `word`: size of a pointer in bytes."""
    for name in list_heuristic_names(learned.heuristics):
        meaning = _MEANINGS[name] if learned.has_arrays or name != "newarray" else _COUNTED
        yield f"blocks that {meaning} count as reachable"
    conventions = [one for one in learned.conventions if not one.is_of_runtime]
    tagged = [one for one in conventions if one.offset < 2 * word and not one.heuristic]
    if len(tagged) > 1:
        every = () if any(not one.sizes for one in tagged) else tuple(sorted({size for one in tagged for size in one.sizes}))
        yield _sentence(
            Convention(1, every, "", sum(one.blocks for one in tagged), sum(one.bytes for one in tagged)),
            "are referenced by pointers with tags in the low bits",
        )
    for one in conventions:
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
        return f"are referenced {number(one.offset)} B after their start: by tagged pointers, or after a header that the program added"
    if one.sizes:
        return f"are referenced {number(one.offset)} B after their start: after a header that the program added, or at a link inside"
    return f"have a header of {number(one.offset)} B that the program added"


def count_interior_blocks(session: Session) -> Totals:
    """Return number and bytes of the blocks that are reachable only because of recognised
    structures and conventions."""
    return Totals.sum_of((session.structures.held, session.learned.held))


def summarise_interior_blocks(held: Totals) -> str:
    """Return "31 MiB in 44,153 blocks count as reachable, though only interior pointers refer to
    them (--heuristics auto)"; "" if there are none."""
    if not held.blocks:
        return ""
    count = f"{size(held.bytes)} in {blocks(held.blocks)}"
    return f"{count} count as reachable, though only interior pointers refer to them (--heuristics auto)"


def list_heuristic_names(heuristics: Heuristic) -> list[str]:
    """Return memcheck's names of the heuristics, in the order of its documentation."""
    return [name for name, one in BY_CONTENT.items() if heuristics & one]


def applied_heuristics(session: Session, asked: str) -> Heuristics:
    """Return the heuristics that `session.graph()` was marked with. `asked`: the value of
    --heuristics as the user wrote it."""
    learned = session.learned
    return Heuristics(
        asked,
        applied=list_heuristic_names(learned.heuristics),
        conventions=[_convention_result(one) for one in learned.conventions],
        structures=[_structure_result(one) for one in session.structures.found],
        held=Amount.of(count_interior_blocks(session)),
        disguised=disguised_pointers(session),
    )


# Most programs have neither conventions nor structures. Therefore the modules with these results
# are imported when they are needed.


def _convention_result(one: Convention) -> note_parts.Convention:
    from findleaks.results import note_parts

    return note_parts.Convention(one.offset, one.sizes or None, one.heuristic or None, one.blocks, one.bytes)


def _structure_result(one: Recognised) -> note_parts.Structure:
    from findleaks.results import note_parts

    return note_parts.Structure(STRUCTURES[one.structure][0], one.pointers, one.blocks, one.bytes)
