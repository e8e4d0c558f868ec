"""Answer the question "why is this block reachable?" with the shortest chain of references to
it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Optional, TypeVar

from findleaks.answers.path_steps import STEPS, Step, select_links
from findleaks.audit.address_info import Describer
from findleaks.audit.disguises import DisguisedReference, disguised_references
from findleaks.audit.managed_graph import find_object
from findleaks.audit.managed_objects import find_links_to, list_callbacks, list_owned_objects, name_variable
from findleaks.audit.member_names import name_in_block
from findleaks.audit.references import find_root_references
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind
from findleaks.errors import Interrupted, UsageError
from findleaks.formatting import format_count
from findleaks.results.references import Path, Skipped
from findleaks.runtimes.base import Runtime
from findleaks.session import Session
from findleaks.target.base import Range

CHUNK = 4096  # blocks that are visited between two checks for Ctrl-C
NEAREST = 6  # references between managed objects that are shown at each end of a chain
# A chain from a variable is searched for from this many roots that refer to a block.
TRIED = 16
# Maximum number of leaked blocks that are visited in the search for a chain from a leak head
SEARCH = 1_000_000

Item = TypeVar("Item")


class FoundPath(NamedTuple):
    """The result of `find_path`. `from_head`: whether the chain begins at a leak head, and this is
    not the block that was asked for."""

    result: Path
    from_head: bool


def find_path(session: Session, address: int, limit: int = STEPS) -> FoundPath:
    """Return the shortest chain from a root to the block or managed object that contains `address`.
    If no root reaches the block, the chain begins at its leak head.

    `limit`: number of references to include; the middle of a longer chain is omitted (0: all).
    Raises UsageError if the address is in neither a block nor a managed object."""
    index = session.directory.blocks.find(address)
    describer = Describer(session)
    answer = describer.subject(address)
    if answer.object is not None:
        from findleaks.answers.managed_references import find_path_of_object

        return FoundPath(find_path_of_object(session, describer, answer, limit), False)
    if index < 0:
        raise UsageError(f"{address:#x} is in no block: {answer.phrase}")
    graph = session.graph()
    chain = session.path(index)
    lost_from = graph.leak_head(index) if not chain else -1
    if lost_from >= 0:
        chain = _from_leak_head(session, graph, lost_from, index)
    chain, variable = _from_variable(session, chain)
    steps = [variable] if variable is not None else []
    if chain and lost_from < 0 and not steps:
        chain, steps = _through_objects(session, describer, chain)
    links, skipped, last = select_links(chain, limit)
    before = {b: a for a, b in links}
    steps += [_block_step(session, describer, a, b, before.get(a, -1)) for a, b in links]
    gap = Skipped(skipped, len(steps) - last) if skipped else None
    leak_head = session.directory.blocks.address(lost_from) if lost_from >= 0 else None
    found = Path(answer.result(), [step.result() for step in steps], len(chain), gap, leak_head)
    return FoundPath(found, lost_from not in (-1, index))


def _from_variable(session: Session, chain: list[int]) -> tuple[list[int], Optional[Step]]:
    """Return the end of the chain that begins at the last variable of a managed language, and the
    step from that variable. If the chain has no such variable, return the chain unchanged, and
    None."""
    blocks = session.directory.blocks
    known = {blocks.find(one.value): (runtime, one) for runtime in session.runtimes for one in runtime.variables()} if chain else {}
    for at in range(len(chain) - 1, -1, -1):
        if chain[at] in known:
            runtime, one = known[chain[at]]
            name = name_variable(one, runtime.name)
            return chain[at:], Step(name, one.address, one.value, one.value - blocks.address(chain[at]), None)
    return chain, None


def _through_objects(session: Session, describer: Describer, chain: list[int]) -> tuple[list[int], list[Step]]:
    """Return the part of the chain after its last managed object that is not a block (Ruby), and
    the steps to the first block of this part. The steps begin at a variable if that object is
    reachable from one, otherwise at the root."""
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
            steps = [Step(name_variable(variable, one.runtime.name), variable.address, variable.value, 0, None)]
            for place, value in links[:NEAREST] + links[max(len(links) - NEAREST, NEAREST) :]:
                steps.append(_object_step(describer, one.runtime, place, value, 0))
            if len(links) > 2 * NEAREST:
                left = len(links) - 2 * NEAREST
                steps[NEAREST + 1] = replace(
                    steps[NEAREST + 1], origin=f"… {format_count(left, 'more reference')}, then {steps[NEAREST + 1].origin}"
                )
            return chain[last + 1 :], [*steps, _object_step(describer, one.runtime, word.address, word.value, word.offset)]
    return chain, _steps_from_root(session, describer, chain[0])


def _object_step(describer: Describer, runtime: Runtime, place: int, value: int, offset: int) -> Step:
    """Return a reference from a managed object, or from the storage that belongs to it."""
    answer = describer.answer(place)
    return Step(runtime.describe(place) or answer.phrase, place, value, offset, answer)


def _steps_from_root(session: Session, describer: Describer, index: int) -> list[Step]:
    """Return the step from a root word to block `index`. If a managed object contains the word (Go,
    the JVM), the steps to this object come first."""
    step = _root_step(session, describer, index)
    if step.answer is None or step.answer.sort != "mapping":
        return [step]
    from findleaks.answers.managed_references import find_object_path

    low, high = _extent(session, index)
    for one in islice(find_root_references(session, low, high), TRIED):
        found = find_object(session, one.address) if one.address else None
        path = find_object_path(session, describer, found, 2 * NEAREST) if found is not None else None
        if found is not None and path is not None and path.steps:
            member, answer = found.member_at(one.address), describer.answer(one.address)
            origin = f"{found.phrase()}{'; ' if member else ''}{member}"
            steps = [*path.steps, Step(origin, one.address, one.value, one.value - low, answer)]
            if path.skipped is not None:
                after, left = path.skipped.after, format_count(path.skipped.steps, "more reference")
                steps[after] = replace(steps[after], origin=f"… {left}, then {steps[after].origin}")
            return steps
    return [step]


def _root_step(session: Session, describer: Describer, index: int) -> Step:
    """Return the root word that refers to block `index`. References to the start of the block are
    preferred, then words in memory."""
    low, high = _extent(session, index)
    references = find_root_references(session, low, high)
    best = _first_best(references, lambda reference: 2 * (reference.value != low) + (reference.address == 0))
    if best is None:
        disguised = next(disguised_references(session, index, -1), None)
        if disguised is not None:
            return _disguised_step(describer, disguised)
        is_doubtful = any(one.start == low for one in session.directory.mappings.doubtful)
        origin = "no word in memory: the mapping may be in use without one" if is_doubtful else "thread control block"
        return _dependent_step(describer, index) or Step(origin, 0, low, 0, None)
    if best.kernel:
        return Step(f"kept by the kernel: {best.kernel}", 0, best.value, best.value - low, None)
    if not best.address:
        return Step(f"register {best.register} of thread {best.tid}", 0, best.value, best.value - low, None)
    answer = describer.answer(best.address)
    callbacks = (one for _, one in list_callbacks(session))
    table = next((f"{one.name}, {answer.phrase}" for one in callbacks if one.address == best.address), "")
    return Step(table or answer.phrase, best.address, best.value, best.value - low, answer)


def _block_step(session: Session, describer: Describer, source: int, to: int, holder: int = -1) -> Step:
    """Return the first word of block `source` that refers to block `to`. References to the start of
    `to` are preferred. `holder`: the block from which `source` was reached; -1: none."""
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
        return _dependent_step(describer, to, source) or Step(describer.block(source).phrase(), base, low, 0, None)
    where, value = best
    member = name_in_block(session, where, session.directory.blocks.address(holder) if holder >= 0 else 0)
    return Step(f"{describer.block(source).phrase()}{'; ' if member else ''}{member}", where, value, value - low, describer.answer(where))


def _dependent_step(describer: Describer, index: int, owner: int = -1) -> Optional[Step]:
    """Return the step from the block `owner` that keeps block `index` in use without a reference;
    None if it does not. -1: from any reachable block."""
    session = describer.session
    address = session.directory.blocks.address
    for one in session.graphs.dependents:
        if one.block != index or (owner >= 0 and one.owner != owner):
            continue
        if one.owner == index:
            return Step(f"{one.phrase} of an object that is in no block", 0, address(index), 0, None)
        if owner >= 0 or session.graph().kind(one.owner) == Kind.REACHABLE:
            return Step(f"{one.phrase} of {describer.block(one.owner).phrase()}", address(one.owner), address(index), 0, None)
    return None


def _disguised_step(describer: Describer, one: DisguisedReference) -> Step:
    answer = describer.answer(one.address)
    start = describer.session.directory.blocks.address(describer.session.directory.blocks.find(one.value))
    origin = describer.block(one.source).phrase() if one.source >= 0 else answer.phrase
    return Step(origin, one.address, one.value, one.value - start, answer, one.name)


def _extent(session: Session, index: int) -> tuple[int, int]:
    """Return the start and the end of a block. A block of size 0 counts as one byte."""
    blocks = session.directory.blocks
    return blocks.address(index), blocks.address(index) + max(blocks.size(index), 1)


def _first_best(found: Iterable[Item], rank: Callable[[Item], int]) -> Optional[Item]:
    """Return the first item of the lowest rank. The search ends at an item of rank 0."""
    best: Optional[Item] = None
    for one in found:
        if best is None or rank(one) < rank(best):
            best = one
            if not rank(best):
                break
    return best


def _from_leak_head(session: Session, graph: Graph, leak_head: int, index: int) -> list[int]:
    """Return the shortest chain of leaked blocks from `leak_head` to `index`; [index] if none is
    found within SEARCH blocks."""
    before = {leak_head: -1}
    queue = deque([leak_head])
    taken = 0
    while queue and index not in before and len(before) < SEARCH:
        at = queue.popleft()
        taken += 1
        if taken % CHUNK == 0 and session.target.is_interrupted():
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
