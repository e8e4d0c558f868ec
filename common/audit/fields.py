"""What hangs from each field of an owner: the words of a block, or of a root, and what is reached through each of them only.

A container's nodes point to one another, so that no node holds the others: all of them hang from the owner's words. Words that are the
head of one container therefore are one field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import pointing
from findleaks.audit.containers import Container
from findleaks.audit.containers.hashes import chained
from findleaks.audit.containers.reader import Place, Reader
from findleaks.audit.containers.recognise import NEAR, Test, found_in, headed
from findleaks.graph.base import Totals
from findleaks.graph.dominators import SHARED, Dominators, root_node
from findleaks.session import PURE_SLICE, SLICE, Session
from findleaks.target.base import Range
from findleaks.target.ranges import inside, merged

MOST = 4096
"""Fields of one owner. Of more pointers, those behind are one field."""

RUN = 8
"""Pointers to blocks alike, with nothing but zeros between, from which on they may be a table of chains."""

MANY = 256
"""So many are an array whatever they lead to, and one field."""


NOTHING = Totals(0, 0)


@dataclass
class Field:
    """Some words of an owner. `places` are the blocks that they point to; `name` a register's. `spans` are addresses. `look` finds the
    container of which a single word is the head, if it is one: that takes a walk, and most fields are never shown."""

    spans: list[Range]
    places: list[Place]
    found: Optional[Container] = None
    name: str = ""
    totals: Totals = NOTHING
    node: int = 0  # in Fields.tree
    look: Optional[Callable[[], Optional[Container]]] = None

    @property
    def container(self) -> Optional[Container]:
        """What the words are the head of."""
        if self.look is not None:
            self.found, self.look = self.look(), None
        return self.found


class Fields(NamedTuple):
    """`all`, the largest first; `several`: what is reached through several of them."""

    all: list[Field]
    tree: Dominators
    several: Totals


def computed(session: Session, tree: Dominators, what: str) -> Dominators:
    """`tree`, computed, with progress and looks at Ctrl-C."""
    budget = PURE_SLICE if session.engine.name == "pure" else SLICE
    while not tree.compute(budget):
        session.tell(what, tree.part())
    return tree


def fields_of(
    session: Session, reader: Reader, whole: Dominators, node: int, memory: Sequence[Range], registers: Iterable[tuple[str, int]] = ()
) -> Fields:
    """The fields of the owner that is `node` in `whole`, whose words stand in `memory` and in `registers` (name, value)."""
    words = _pointers(session, reader, memory)
    places = {address: place for address, value in words.items() for place in [reader.place(value)] if place is not None}
    held: dict[int, bool] = {}

    def wanted(place: Place) -> bool:
        if place.block not in held:
            held[place.block] = whole.holder(place.block) == node
        return held[place.block]

    named = [Field([], [place], None, name) for name, value in registers for place in [reader.place(value)] if place is not None]
    arrays = list(_arrays(reader, places))
    taken = merged(span for container in arrays for span in container.spans)
    left = {address: value for address, value in words.items() if inside(taken, address) is None}
    alone = _alike(left, places)
    containers: list[Container] = []
    found: Optional[Fields] = None
    while True:
        heads = found_in(reader, left, wanted, alone.__contains__) if len(left) <= MOST else []
        if found is not None and not any(made.words for made in heads if not any(made is one for one in containers)):
            return found  # what was found beside took no word of another field
        containers = heads
        fields = _grouped(reader, words, places, [*arrays, *containers], wanted, alone if len(left) <= MOST else words.keys())
        found = _told(session, whole, node, fields + list({f.places[0].block: f for f in named}.values()))
        more = _entangled(left, places, found.tree) - alone if len(left) <= MOST else set()
        if not more:
            return found
        alone |= more


def _told(session: Session, whole: Dominators, node: int, fields: list[Field]) -> Fields:
    """What each of the fields retains, and several."""
    if len(fields) > MOST:
        rest = fields[MOST - 1 :]
        fields[MOST - 1 :] = [Field(merged(s for f in rest for s in f.spans), [p for f in rest for p in f.places])]
    tree = whole.within(node, len(fields))
    for number, field in enumerate(fields):
        tree.refer(number, sorted({place.block for place in field.places}))
        field.node = root_node(number)
    computed(session, tree, "telling fields apart")
    for field, totals in zip(fields, tree.by_root()):
        field.totals = totals
    kept = sorted((f for f in fields if f.totals.blocks), key=lambda f: -f.totals.bytes)
    return Fields(kept, tree, tree.retained(SHARED))


def _alike(words: Mapping[int, int], places: Mapping[int, Place]) -> set[int]:
    """The words that point to the same block as another."""
    first: dict[int, int] = {}
    found: set[int] = set()
    for address in words:
        if address in places:
            other = first.setdefault(places[address].block, address)
            found |= {address, other} if other != address else set()
    return found


def _entangled(words: Mapping[int, int], places: Mapping[int, Place], tree: Dominators) -> set[int]:
    """The words near one whose block something else leads to, too: one of them may be the head of a list and that its tail, and then the
    two are one field. Where no such word is near, a head of one word is a field by itself whatever it is the head of."""
    order = list(words)
    found: set[int] = set()
    for number, address in enumerate(order):
        if address in places and tree.holder(places[address].block) in (None, SHARED):
            found.update(order[max(number - NEAR, 0) : number + NEAR + 1])
    return found


def _pointers(session: Session, reader: Reader, memory: Sequence[Range]) -> dict[int, int]:
    """The words in `memory` that point into heaps: address -> value, ascending."""
    heaps = merged(session.heap_ranges())
    found: dict[int, int] = {}
    if not heaps:
        return found
    for piece in session.pieces(memory, "reading fields"):
        addresses, values = pointing(session.engine, piece, heaps[0].start, heaps[-1].end)
        for count, (address, value) in enumerate(zip(addresses, values)):
            if count % 4096 == 4095:
                session.tell("reading fields", 0.0)
            if inside(heaps, value) is not None:
                found[address] = value
    return found


def _grouped(
    reader: Reader,
    words: Mapping[int, int],
    places: Mapping[int, Place],
    containers: Sequence[Container],
    wanted: Test,
    looked: Set[int],
) -> list[Field]:
    """The words as fields, ascending: containers together, other words one by one. Those in `looked` are the head of none; whether
    another is the head of one by itself is looked for when somebody asks."""
    taken = merged(span for container in containers for span in container.spans)
    fields = [Field(made.spans, [place for span in made.spans for _, place in _within(places, span)], made) for made in containers]
    same: dict[int, Field] = {}  # several words that point to one block are one field: a buffer's begin and end
    for address, place in places.items():
        if inside(taken, address) is None:
            one = same.setdefault(place.block, Field([], []))
            one.spans.append(Range(address, address + reader.size))
            one.places.append(place)
            if address not in looked and wanted(place):
                one.look = partial(headed, reader, address, words[address], place)
    return fields + list(same.values())


def _within(places: Mapping[int, Place], span: Range) -> Iterator[tuple[int, Place]]:
    if (span.end - span.start) // 4 < len(places):
        for address in range(span.start, span.end, 4):
            if address in places:
                yield address, places[address]
    else:
        yield from ((address, place) for address, place in places.items() if span.start <= address < span.end)


def _arrays(reader: Reader, places: Mapping[int, Place]) -> Iterator[Container]:
    """Arrays of pointers that are part of the owner itself: tables of chains, and others."""
    run: list[int] = []
    for address, place in [*places.items(), (0, None)]:
        like = run and place is not None and (len(run) >= MANY or reader.alike_or_same(places[run[0]], place))
        if like and _zeros(reader, run[-1], address):
            run.append(address)
            continue
        if len(run) >= RUN:
            start, end = run[0], run[-1] + reader.size
            made = chained(reader, start, end, (start, end), whole=True)
            if made is None and len(run) >= MANY:
                made = Container("array of pointers", start, end, len(run), "pointers")
            if made is not None:
                yield made
        run = [address]


def _zeros(reader: Reader, low: int, high: int) -> bool:
    """Nothing stands between the pointers at `low` and `high`."""
    gap = high - low - reader.size
    if not gap:
        return True
    if gap < 0 or gap > 1 << 16:
        return False
    words = reader.words(low + reader.size, gap // reader.size)
    return words is not None and not any(words)
