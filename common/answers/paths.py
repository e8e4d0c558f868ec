"""The answer to "why is this block reachable?": the shortest chain of references to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional, TypeVar

from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.disguises import DisguisedReference, disguised_references
from findleaks.audit.managed_objects import find_links_to, list_owned_objects
from findleaks.audit.member_names import name_in_block
from findleaks.audit.references import find_root_references
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind
from findleaks.errors import Interrupted, UsageError
from findleaks.formatting import counted
from findleaks.results import references
from findleaks.results.references import Path, Skipped
from findleaks.runtimes.base import Runtime
from findleaks.session import Session
from findleaks.target.base import Range

STEPS = 25  # References of a chain that are kept if the caller gives no limit.
LAST = 4  # Steps shown at the end of a shortened chain, for example a list of a million nodes.
CHUNK = 4096  # Blocks visited between two checks for Ctrl-C.
NEAREST = 6  # References between objects that are shown at each end of a chain of managed objects.
# The search for a chain from a variable starts at this many roots that refer to a block.
TRIED = 16
SEARCH = 1_000_000  # Most leaked blocks visited while searching for a chain from a leak head.

Item = TypeVar("Item")


@dataclass(frozen=True)
class Step:
    """A reference to the next block: a word that refers to `offset` bytes into it."""

    origin: str
    address: int  # The address of the word; 0 if it is not in memory.
    value: int  # The value of the word.
    offset: int
    answer: Optional[AddressDescription]
    disguise: str = ""  # How the pointer is disguised; None for a plain pointer.

    def result(self) -> references.Step:
        return references.Step(
            self.origin,
            self.address or None,
            self.value,
            self.offset,
            interior=self.offset != 0,
            disguise=self.disguise or None,
            place=self.answer.result() if self.answer is not None else None,
        )


class FoundPath(NamedTuple):
    """The result. `from_head`: the chain begins at the leak head of another block."""

    result: Path
    from_head: bool


def find_path(session: Session, address: int, limit: int = STEPS) -> FoundPath:
    """The shortest chain from a root to the block that contains `address`, or from its leak head if
    no root reaches it.

    `limit`: references to keep; the middle of a longer chain is omitted (0: all). UsageError: the
    address is in no block."""
    index = session.directory.blocks.find(address)
    describer = Describer(session)
    answer = describer.answer(address)
    if index < 0:
        raise UsageError(f"{address:#x} is in no block: {answer.phrase}")
    graph = session.graph()
    chain = session.path(index)
    lost_from = graph.leader(index) if not chain else -1
    if lost_from >= 0:
        chain = _from_leader(session, graph, lost_from, index)
    chain, variable = _from_variable(session, chain)
    steps = [variable] if variable is not None else []
    if chain and lost_from < 0 and not steps:
        chain, steps = _through_objects(session, describer, chain)
    links, skipped, last = _shown(chain, limit)
    before = {b: a for a, b in links}
    steps += [_block_step(session, describer, a, b, before.get(a, -1)) for a, b in links]
    gap = Skipped(skipped, len(steps) - last) if skipped else None
    leader = session.directory.blocks.address(lost_from) if lost_from >= 0 else None
    found = Path(answer.result(), [step.result() for step in steps], len(chain), gap, leader)
    return FoundPath(found, lost_from not in (-1, index))


def _from_variable(session: Session, chain: list[int]) -> tuple[list[int], Optional[Step]]:
    """The part of the chain from the last variable of a managed language on, with the step from
    that variable. If there is no such variable: the chain unchanged, and None."""
    blocks = session.directory.blocks
    known = {blocks.find(one.value): (runtime, one) for runtime in session.runtimes for one in runtime.variables()} if chain else {}
    for at in range(len(chain) - 1, -1, -1):
        if chain[at] in known:
            runtime, one = known[chain[at]]
            name = f"{one.name} ({runtime.name} variable)"
            return chain[at:], Step(name, one.address, one.value, one.value - blocks.address(chain[at]), None)
    return chain, None


def _through_objects(session: Session, describer: Describer, chain: list[int]) -> tuple[list[int], list[Step]]:
    """The chain from its last object that is not a block (Ruby's), with the steps to its first
    block. It starts at a variable if one leads to that object, else at the root."""
    blocks = session.directory.blocks
    pages = {blocks.find(page.start) for one in list_owned_objects(session) for page in one.objects.pages}
    last = max((at for at, index in enumerate(chain[:-1]) if index in pages), default=-1)
    if last >= 0:
        words = [_block_step(session, describer, chain[last], chain[last + 1])]
    else:
        low, high = _extent(session, chain[0])
        words = [Step("", one.address, one.value, one.value - low, None) for one in find_root_references(session, low, high) if one.address]
    for word in words[:TRIED]:
        found = find_links_to(session, word.address)
        if found is not None:
            one, variable, links = found
            steps = [Step(f"{variable.name} ({one.runtime.name} variable)", variable.address, variable.value, 0, None)]
            for place, value in links[:NEAREST] + links[max(len(links) - NEAREST, NEAREST) :]:
                steps.append(_object_step(describer, one.runtime, place, value, 0))
            if len(links) > 2 * NEAREST:
                left = len(links) - 2 * NEAREST
                steps[NEAREST + 1] = replace(
                    steps[NEAREST + 1], origin=f"… {counted(left, 'more reference')}, then {steps[NEAREST + 1].origin}"
                )
            return chain[last + 1 :], [*steps, _object_step(describer, one.runtime, word.address, word.value, word.offset)]
    return chain, [_root_step(session, describer, chain[0])]


def _object_step(describer: Describer, runtime: Runtime, place: int, value: int, offset: int) -> Step:
    """A reference from an object or from its storage."""
    answer = describer.answer(place)
    return Step(runtime.describe(place) or answer.phrase, place, value, offset, answer)


def _shown(chain: Sequence[int], limit: int) -> tuple[list[tuple[int, int]], int, int]:
    """The links to show, the number of links omitted, and the number of shown links after the
    gap."""
    links = list(zip(chain, chain[1:]))
    if limit <= 0 or len(links) <= limit:
        return links, 0, 0
    last = min(LAST, limit - 1)
    first = limit - last
    return [*links[:first], *links[len(links) - last :]], len(links) - limit, last


def _root_step(session: Session, describer: Describer, index: int) -> Step:
    """The root word that refers to block `index`. References to its start are preferred, then words
    in memory."""
    low, high = _extent(session, index)
    references = find_root_references(session, low, high)
    best = _first_best(references, lambda reference: 2 * (reference.value != low) + (reference.address == 0))
    if best is None:
        disguised = next(disguised_references(session, index, -1), None)
        return _disguised_step(describer, disguised) if disguised is not None else Step("thread control block", 0, low, 0, None)
    if best.kernel:
        return Step(f"kept by the kernel: {best.kernel}", 0, best.value, best.value - low, None)
    if not best.address:
        return Step(f"register {best.register} of thread {best.tid}", 0, best.value, best.value - low, None)
    answer = describer.answer(best.address)
    return Step(answer.phrase, best.address, best.value, best.value - low, answer)


def _block_step(session: Session, describer: Describer, source: int, to: int, holder: int = -1) -> Step:
    """The first word of block `source` that refers to block `to`. References to its start are
    preferred. `holder`: the block that `source` was reached from; -1: none."""
    base = session.directory.blocks.address(source)
    low, high = _extent(session, to)
    word, order = session.target.arch.word, session.target.arch.byteorder
    pieces = session.pieces([Range(base, base + session.directory.blocks.size(source))], "reading a block")
    places = ((piece, where) for piece in pieces for where in session.engine.search(piece, low, high))
    found = ((where, int.from_bytes(piece.data[where - piece.address :][:word], order)) for piece, where in places)
    best = _first_best(found, lambda one: one[1] != low)
    if best is None:
        disguised = next(disguised_references(session, to, source), None)
        if disguised is not None:
            return _disguised_step(describer, disguised)
        return Step(describer.block(source).phrase(), base, low, 0, None)
    where, value = best
    member = name_in_block(session, where, session.directory.blocks.address(holder) if holder >= 0 else 0)
    return Step(f"{describer.block(source).phrase()}{'; ' if member else ''}{member}", where, value, value - low, describer.answer(where))


def _disguised_step(describer: Describer, one: DisguisedReference) -> Step:
    answer = describer.answer(one.address)
    start = describer.session.directory.blocks.address(describer.session.directory.blocks.find(one.value))
    origin = describer.block(one.source).phrase() if one.source >= 0 else answer.phrase
    return Step(origin, one.address, one.value, one.value - start, answer, one.name)


def _extent(session: Session, index: int) -> tuple[int, int]:
    """Start and end of a block. The length is at least one byte."""
    blocks = session.directory.blocks
    return blocks.address(index), blocks.address(index) + max(blocks.size(index), 1)


def _first_best(found: Iterable[Item], rank: Callable[[Item], int]) -> Optional[Item]:
    """The first item of the lowest rank. An item of rank 0 ends the search."""
    best: Optional[Item] = None
    for one in found:
        if best is None or rank(one) < rank(best):
            best = one
            if not rank(best):
                break
    return best


def _from_leader(session: Session, graph: Graph, leader: int, index: int) -> list[int]:
    """The shortest chain of leaked blocks from `leader` to `index`; [index] if none is found within
    SEARCH blocks."""
    before = {leader: -1}
    queue = deque([leader])
    taken = 0
    while queue and index not in before and len(before) < SEARCH:
        at = queue.popleft()
        taken += 1
        if taken % CHUNK == 0 and session.target.interrupted():
            raise Interrupted
        for to, _ in graph.references(at):
            if to not in before and graph.kind(to) in (Kind.DEFINITE, Kind.INDIRECT):
                before[to] = at
                queue.append(to)
    chain = []
    at = index
    while at != -1 and at in before:
        chain.append(at)
        at = before[at]
    return chain[::-1] or [index]
