"""Ranges of memory that words refer to."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.target.base import Range


def find_rooted_ranges(
    session: Session, ranges: Sequence[tuple[int, int]], searched: Sequence[Range], phase: str, registers: bool = True
) -> list[bool]:
    """Return for each range whether a word of the `searched` memory, or a register, refers to it.

    `ranges` consist of whole pages, ascending and disjoint. The engine gets them as blocks: it then
    needs one pass over memory for any number of them."""
    blocks = session.engine.blocks(session.target.arch, session.target.arch.page)
    blocks.append([start for start, _ in ranges], [end - start for start, end in ranges], [State.IN_USE] * len(ranges))
    blocks.seal()
    graph = session.engine.graph(blocks)
    for piece in session.pieces(searched, phase):
        graph.scan_roots(piece)
    if registers:
        graph.root_words(session.register_words())
    graph.settle()
    return [graph.is_rooted(index) for index in range(len(ranges))]
