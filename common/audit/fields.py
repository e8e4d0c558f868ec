"""What hangs from each field of an owner: the words of a block, or of a root, and what is reached through each of them only.

A container's nodes point to one another, so that no node holds the others: all of them hang from the owner's words. Words that are the
head of one container therefore are one field.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.hashes import chained
from findleaks.audit.containers.reader import Place, Reader
from findleaks.audit.containers.recognise import NEAR, Test, found_in, headed
from findleaks.audit.words import MANY, Words, read_words
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.session import PURE_SLICE, SLICE, Session
from findleaks.target.base import Range
from findleaks.target.ranges import inside, merged

MOST = 4096
"""Fields of one owner. Of more, those that lead to blocks of about the same size are one field."""

LOOKED = 8 * MOST
"""Pointers beside arrays that are looked at one by one. Of more nothing is known but the sizes of the blocks that they lead to."""

CHUNK = 1 << 16
"""Words sorted by what they lead to between two looks at Ctrl-C."""

RUN = 8
"""Pointers to blocks alike, with nothing but zeros between, from which on they may be a table of chains."""

NOTHING = Totals(0, 0)


@dataclass
class Field:
    """Some words of an owner. `places` are the blocks that they point to; `name` a register's. `spans` are addresses. `look` finds the
    container of which a single word is the head, if it is one: that takes a walk, and most fields are never shown.

    Where there are many words, `values` are all that they hold, and `spans` and `places` are of the first. `alike`: this is so many
    words, each of them a field of its own, that lead to blocks of about the same size."""

    spans: list[Range]
    places: list[Place]
    found: Optional[Container] = None
    name: str = ""
    totals: Totals = NOTHING
    node: int = 0  # in Fields.tree
    look: Optional[Callable[[], Optional[Container]]] = None
    values: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    alike: int = 1

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
    shared: Totals


def computed(session: Session, tree: Dominators, what: str) -> Dominators:
    """`tree`, computed, with progress and looks at Ctrl-C."""
    budget = PURE_SLICE if session.engine.name == "pure" else SLICE
    while not tree.compute(budget):
        session.tell(what, tree.progress())
    return tree


def fields_of(
    session: Session, reader: Reader, whole: Dominators, node: int, memory: Sequence[Range], registers: Iterable[tuple[str, int]] = ()
) -> Fields:
    """The fields of the owner that is `node` in `whole`, whose words stand in `memory` and in `registers` (name, value)."""
    read = read_words(session, reader, memory)
    whole_arrays = [_array(reader, *run) for run in read.runs]
    named = [Field([], [place], None, name) for name, value in registers for place in [reader.place(value)] if place is not None]
    named = list({one.places[0].block: one for one in named}.values())
    if len(read.values) > LOOKED:
        return _told(session, whole, node, [*whole_arrays, *_by_size(session, reader, read), *named])
    heaps = merged(session.heap_ranges())
    words = {address: value for address, value in zip(read.addresses, read.values) if inside(heaps, value) is not None}
    places = {address: place for address, value in words.items() for place in [reader.place(value)] if place is not None}
    held: dict[int, bool] = {}

    def wanted(place: Place) -> bool:
        if place.block not in held:
            held[place.block] = whole.idom(place.block) == node
        return held[place.block]

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
        found = _told(session, whole, node, [*whole_arrays, *_fewer(fields), *named])
        more = _entangled(left, places, found.tree) - alone if len(left) <= MOST else set()
        if not more:
            return found
        alone |= more


def _told(session: Session, whole: Dominators, node: int, fields: list[Field]) -> Fields:
    """What each of the fields retains, and several."""
    tree = whole.within(node, len(fields))
    for number, one in enumerate(fields):
        if one.values:
            tree.root_words(one.values, number)
        else:
            tree.refer(number, sorted({place.block for place in one.places}))
        one.node = root_node(number)
    computed(session, tree, "telling fields apart")
    for one, totals in zip(fields, tree.by_root()):
        one.totals = totals
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
        if address in places and tree.idom(places[address].block) in (None, SHARED):
            found.update(order[max(number - NEAR, 0) : number + NEAR + 1])
    return found


def _array(reader: Reader, run: Range, values: array[int]) -> Field:
    """An array of pointers that is part of the owner itself."""
    start, end = run
    made = chained(reader, start, end, (start, end), whole=True) or Container("array of pointers", start, end, len(values), "pointers")
    return Field([run], [place for place in [reader.place(values[0])] if place is not None], made, values=values)


def about(size: int) -> int:
    """The same for sizes that are about the same."""
    bits = size.bit_length()
    return size if bits <= 10 else bits << 10 | size >> bits - 4


def _fewer(fields: list[Field]) -> list[Field]:
    """No more than MOST: words that lead to blocks of about the same size are one field together."""
    if len(fields) <= MOST:
        return fields
    together: dict[int, list[Field]] = {}
    for one in fields:
        if one.found is None:
            together.setdefault(about(one.places[0].size), []).append(one)
    made = [one for one in fields if one.found is not None]
    for same in together.values():
        values = array("Q", [place.start + place.offset for one in same for place in one.places])
        made.append(Field(same[0].spans[:1], same[0].places[:1], values=values, alike=len(same)))
    return made


def _by_size(session: Session, reader: Reader, read: Words) -> list[Field]:
    """A field for each size of blocks that the words lead to."""
    made: dict[int, Field] = {}
    for first in range(0, len(read.values), CHUNK):
        session.tell("reading fields", first / len(read.values))
        some = read.values[first : first + CHUNK]
        _, sizes = reader.blocks.find_all(some)
        for number, (value, size) in enumerate(zip(some, sizes)):
            one = made.get(size)
            if one is None and size:
                key = -about(size)
                address = read.addresses[first + number]
                one = made[size] = made.setdefault(key, Field([Range(address, address + reader.size)], [], alike=0))
            if one is not None:
                one.values.append(value)
    fields = [one for key, one in made.items() if key < 0]
    for one in fields:
        one.alike = len(one.values)
        one.places = [place for place in [reader.place(one.values[0])] if place is not None]
    return fields


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
        if like and reader.zeros(run[-1] + reader.size, address):
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
