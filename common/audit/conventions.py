"""The program's conventions by which interior pointers hold blocks: as sentences, and for JSON."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.disguises import disguises_json
from findleaks.engine.terms import Heuristic
from findleaks.formatting import blocks, number, size, some
from findleaks.graph.conventions import BY_CONTENT, Convention, Learned
from findleaks.session import Session

MAX_SIZES = 3

_MEANINGS = {
    "length64": "begin with their own length (length64), and pointers go behind it",
    "newarray": "begin with the count that new T[n] keeps (newarray), and pointers go behind it",
    "stdstring": "begin with the header of an old std::string (stdstring), and pointers go behind it",
    "multipleinheritance": "are held by pointers to a base class's part (multipleinheritance)",
}


def sentences(learned: Learned, word: int) -> Iterator[str]:
    """ "1,128 blocks (9.2 MiB) carry a header of 24 B of the program's own", one for each
    convention; `word` is a pointer's size."""
    for name in names(learned.heuristics):
        yield f"blocks that {_MEANINGS[name]} count as held"
    for one in learned.conventions:
        yield f"{blocks(one.blocks)} ({size(one.bytes)}){_sizes(one)} {_convention(one, word)}"


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


def summary(learned: Learned) -> str:
    """ "counted as held, though only by interior pointers (--heuristics auto): 31 MiB in 44,153
    blocks", or "" """
    if not learned.held.blocks:
        return ""
    count = f"{size(learned.held.bytes)} in {blocks(learned.held.blocks)}"
    return f"counted as held, though by interior pointers only (--heuristics auto): {count}"


def names(heuristics: Heuristic) -> list[str]:
    """The heuristics' names in memcheck, in the order of its documentation."""
    return [name for name, one in BY_CONTENT.items() if heuristics & one]


def conventions_json(session: Session, asked: str) -> dict[str, object]:
    """`asked`: as the user wrote it. `applied`: heuristics that count; `conventions`: the offsets;
    `held`: what only these make reachable."""
    learned = session.learned
    return {
        "asked": asked,
        "applied": names(learned.heuristics),
        "conventions": [
            {**one._asdict(), "sizes": list(one.sizes) or None, "heuristic": one.heuristic or None} for one in learned.conventions
        ],
        "held": learned.held._asdict(),
        "disguised": disguises_json(session),
    }
