"""Answer the questions "what refers to this object?" and "why is it live?", for objects in the heap
of a runtime whose object graph findleaks follows (Go, the JVM)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from findleaks.answers.path_steps import Step, select_links
from findleaks.audit.address_info import AddressDescription, Describer
from findleaks.audit.managed_graph import FoundObject
from findleaks.errors import Interrupted, UsageError
from findleaks.results.references import Path, Reference, References, Skipped
from findleaks.results.runtimes import RetainingObject
from findleaks.runtimes.object_graph import NO_ROOT, ObjectGraph, ObjectWord
from findleaks.session import Session

_CHUNK = 4096  # objects that are read between two checks for Ctrl-C


class ObjectPath(NamedTuple):
    """A chain of references from a root to an object. `steps`: empty if no root reaches the object.
    `objects`: number of objects in the whole chain."""

    steps: list[Step]
    objects: int
    skipped: Optional[Skipped]


def list_object_references(session: Session, describer: Describer, answer: AddressDescription, exact: bool, limit: int) -> References:
    """List the roots and objects that refer to a managed object. With `exact`, list only references
    to this address in the object. `limit`: number of references to describe (0: all)."""
    found = _require_object(answer)
    low, high = (answer.address, answer.address + 1) if exact else found.graph.extent(found.object.block)
    made: list[Reference] = []
    count = live = 0
    for word, source in _references(session, found, low, high):
        count += 1
        is_live = source < 0 or found.graph.object(source).is_live is True
        live += is_live
        if limit <= 0 or count <= limit:
            made.append(_result(describer, found, word, source, low, is_live))
    return References(answer.result(), count, live, made)


def find_object_path(session: Session, describer: Describer, found: FoundObject, limit: int) -> ObjectPath:
    """Return a shortest chain from a root to an object. `limit`: number of references between
    objects that the result contains."""
    graph = found.graph
    chain = graph.path(found.object.block)
    if not chain:
        return ObjectPath([], 0, None)
    low, _ = graph.extent(chain[0])
    root = graph.root_of(found.object.block) or ObjectWord(0, low)
    links, skipped, last = select_links(chain, limit)
    steps = [_root_step(describer, root, low), *(_object_step(describer, found, *link) for link in links)]
    return ObjectPath(steps, len(chain), Skipped(skipped, len(steps) - last) if skipped else None)


def find_path_of_object(session: Session, describer: Describer, answer: AddressDescription, limit: int) -> Path:
    """Return the result of `path` for the managed object at an address."""
    path = find_object_path(session, describer, _require_object(answer), limit)
    return Path(answer.result(), [step.result() for step in path.steps], path.objects, path.skipped, None)


def describe_retainers(session: Session, graph: ObjectGraph, most: int) -> list[RetainingObject]:
    """Describe the objects that retain the most memory of a runtime's heap."""
    describer, made = Describer(session), []
    for one, retained in graph.retainers(most):
        found = graph.root_of(one.block)
        root = _root_step(describer, found, graph.extent(graph.path(one.block)[0])[0]).origin if found is not None else NO_ROOT
        made.append(RetainingObject(one.address, one.type, *retained, root, graph.describe_path(one.block)))
    return made


def _require_object(answer: AddressDescription) -> FoundObject:
    """Return the object that was found at the address. Raises UsageError if the runtime's
    references are unknown."""
    found = answer.object
    if found is None or found.graph.graph is None:
        raise UsageError(f"{answer.address:#x}: {answer.phrase}: the references among these objects cannot be read")
    return found


def _references(session: Session, found: FoundObject, low: int, high: int) -> Iterator[tuple[ObjectWord, int]]:
    """Yield each reference, with the index of the object that contains it (-1: a root)."""
    graph = found.graph
    for word in graph.roots_to(low, high):
        yield word, -1
    start, _ = graph.extent(found.object.block)
    for count, source in enumerate(graph.referrers(found.object.block)):
        if count % _CHUNK == _CHUNK - 1 and session.target.is_interrupted():
            raise Interrupted
        words: Sequence[ObjectWord] = list(graph.references_of(source, low, high))
        yield from ((word, source) for word in words)
        if not words and low == start and not any(graph.references_of(source, *graph.extent(found.object.block))):
            yield ObjectWord(0, start, graph.name_implicit(source, found.object.block)), source


def _result(describer: Describer, found: FoundObject, word: ObjectWord, source: int, low: int, is_live: bool) -> Reference:
    place = word.address or (found.graph.blocks.address(source) if source >= 0 else 0)
    origin = _origin(describer, word, place) if place else None
    if origin is not None and origin.object is None and source >= 0:  # native memory of an object
        origin = replace(origin, phrase=_describe_source(found, source, word))
    return Reference(
        register=word.register or None,
        thread=word.tid or None,
        address=word.address or None,
        value=word.value,
        offset=word.value - low,
        interior=word.value != low,
        live=is_live,
        origin=origin.result() if origin is not None else None,
    )


def _origin(describer: Describer, word: ObjectWord, place: int) -> AddressDescription:
    """Describe the place of a reference. If the reference is a root, the runtime's description of
    it is preferred to that of its memory."""
    answer = describer.answer(place)
    if answer.object is not None and not word.address:
        return replace(answer, phrase=f"{answer.phrase}: {word.name}")
    return replace(answer, phrase=word.name) if word.name and answer.object is None else answer


def _root_step(describer: Describer, root: ObjectWord, low: int) -> Step:
    if not root.address:
        return Step(root.describe_root(), 0, root.value, root.value - low, None)
    answer = _origin(describer, root, root.address)
    return Step(answer.phrase, root.address, root.value, root.value - low, answer)


def _object_step(describer: Describer, found: FoundObject, source: int, target: int) -> Step:
    graph = found.graph
    word = graph.link(source, target)
    low, _ = graph.extent(target)
    origin = _describe_source(found, source, word)
    answer = describer.answer(word.address or graph.blocks.address(source))
    return Step(origin, word.address, word.value, word.value - low, answer)


def _describe_source(found: FoundObject, source: int, word: ObjectWord) -> str:
    """Describe the object that contains a reference, and the reference."""
    phrase = FoundObject(found.graph, found.runtime, found.graph.object(source)).phrase()
    return f"{phrase}; {word.name}" if word.name else phrase
