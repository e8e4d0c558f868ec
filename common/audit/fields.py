"""Fields of an owner (a block or a root): its words, and what each of them alone retains.

A container's nodes point to one another, so none dominates the others: the owner's words retain
them all. Words that are the head of one container are therefore one field."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.hashes import chained
from findleaks.audit.containers.reader import Place, Reader
from findleaks.audit.containers.recognise import NEAR, Test, found_in, headed
from findleaks.audit.pointer_words import MANY, Words, read_words
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

MOST = 4096  # most fields of one owner; more are merged by the size of the blocks they lead to
LOOKED = 8 * MOST  # pointers outside arrays examined; beyond, only their blocks' sizes are known
CHUNK = 1 << 16  # words grouped by what they lead to between two checks for Ctrl-C

RUN = 8
"""Fewest pointers to blocks alike, only zeros in between, that may be a hash table's buckets."""

ALIKE = 8  # fewest fields that become one row; of fewer, their names say more
RATIO = 2  # a group's largest field retains at most this many times as much as its smallest

NOTHING = Totals(0, 0)


@dataclass
class Field:
    """Some words of an owner. `look` finds the container that they head only when asked for: it
    walks all nodes, and most fields are never shown."""

    spans: list[Range]  # addresses of the words; if many, only of the first
    places: list[Place]  # blocks that they point to; if many, only the first
    found: Optional[Container] = None
    name: str = ""  # the register's, for a register
    totals: Totals = NOTHING
    node: int = 0  # of Fields.tree
    look: Optional[Callable[[], Optional[Container]]] = None
    values: array[int] = field(default_factory=lambda: array("Q"), repr=False)  # of all, if many
    alike: int = 1  # number of fields to blocks of about the same size that are taken together

    @property
    def container(self) -> Optional[Container]:
        """The container that has these words as its head."""
        if self.look is not None:
            self.found, self.look = self.look(), None
        return self.found


class Fields(NamedTuple):
    """An owner's fields."""

    all: list[Field]  # the largest first
    tree: Dominators
    shared: Totals  # what only several of them together retain


def fields_of(
    session: Session, reader: Reader, whole: Dominators, node: int, memory: Sequence[Range], registers: Iterable[tuple[str, int]] = ()
) -> Fields:
    """Fields of the owner `node` of `whole`; its words: `memory` and `registers` (name, value)."""
    read = read_words(session, reader, memory)
    whole_arrays = [_array_field(reader, *run) for run in read.runs]
    named = [Field([], [place], None, name) for name, value in registers for place in [reader.place(value)] if place is not None]
    named = list({one.places[0].block: one for one in named}.values())
    if len(read.values) > LOOKED:
        return _with_totals(session, whole, node, [*whole_arrays, *_grouped_by_size(session, reader, read), *named])
    words = {address: value for address, value in zip(read.addresses, read.values) if range_at(reader.heaps, value) is not None}
    places = {address: place for address, value in words.items() for place in [reader.place(value)] if place is not None}
    held: dict[int, bool] = {}

    def wanted(place: Place) -> bool:
        if place.block not in held:
            held[place.block] = whole.idom(place.block) == node
        return held[place.block]

    arrays = list(_arrays(reader, places))
    taken = merge_ranges(span for container in arrays for span in container.spans)
    left = {address: value for address, value in words.items() if range_at(taken, address) is None}
    alone = _same_target(left, places)
    containers: list[Container] = []
    found: Optional[Fields] = None
    while True:
        heads = found_in(reader, left, wanted, alone.__contains__) if len(left) <= MOST else []
        if found is not None and not any(made.words for made in heads if not any(made is one for one in containers)):
            return found  # no new container took a word of another field
        containers = heads
        fields = _grouped(reader, words, places, [*arrays, *containers], wanted, alone if len(left) <= MOST else words.keys())
        found = _with_totals(session, whole, node, [*whole_arrays, *_merged_by_size(fields), *named])
        more = _near_shared(left, places, found.tree) - alone if len(left) <= MOST else set()
        if not more:
            return found
        alone |= more


def _with_totals(session: Session, whole: Dominators, node: int, fields: list[Field]) -> Fields:
    """Compute what each field retains, and what they share."""
    tree = whole.within(node, len(fields))
    for number, one in enumerate(fields):
        if one.values:
            tree.root_words(one.values, number)
        else:
            tree.refer(number, sorted({place.block for place in one.places}))
        one.node = root_node(number)
    session.computed(tree, "computing what fields retain")
    for one, totals in zip(fields, tree.by_root()):
        one.totals = totals
    kept = sorted((f for f in fields if f.totals.blocks), key=lambda f: -f.totals.bytes)
    return Fields(kept, tree, tree.retained(SHARED))


def _same_target(words: Mapping[int, int], places: Mapping[int, Place]) -> set[int]:
    """The words that point to the same block as another word."""
    by_block: dict[int, list[int]] = {}
    for address in words:
        if address in places:
            by_block.setdefault(places[address].block, []).append(address)
    return {address for same in by_block.values() if len(same) > 1 for address in same}


def _near_shared(words: Mapping[int, int], places: Mapping[int, Place], tree: Dominators) -> set[int]:
    """Words near one whose block is also reached another way: perhaps a list's head and tail, which
    are one field. A head without such a word near it is a field by itself, whatever it heads."""
    order = list(words)
    found: set[int] = set()
    for number, address in enumerate(order):
        if address in places and tree.idom(places[address].block) in (None, SHARED):
            found.update(order[max(number - NEAR, 0) : number + NEAR + 1])
    return found


def _array_field(reader: Reader, run: Range, values: array[int]) -> Field:
    """An array of pointers inside the owner as a field."""
    start, end = run
    made = chained(reader, start, end, (start, end), whole=True) or Container("array of pointers", start, end, len(values), "pointers")
    return Field([run], reader.first_place(values), made, values=values)


def about(size: int) -> int:
    """A key that is the same for sizes that are about the same."""
    bits = size.bit_length()
    return size if bits <= 10 else bits << 10 | size >> bits - 4


def _merged_by_size(fields: list[Field]) -> list[Field]:
    """At most MOST fields: beyond, those that lead to blocks of about the same size are merged."""
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


def _grouped_by_size(session: Session, reader: Reader, read: Words) -> list[Field]:
    """One field for each size of blocks that the words lead to."""
    made: dict[int, Field] = {}
    for first in range(0, len(read.values), CHUNK):
        session.report_progress("reading fields", first / len(read.values))
        some = read.values[first : first + CHUNK]
        _, sizes = reader.blocks.find_all(some)
        by_size = {size: made.setdefault(about(size), Field([], [])) for size in dict.fromkeys(sizes) if size}
        for number, (value, size) in enumerate(zip(some, sizes)):
            if size:
                one = by_size[size]
                if not one.values:
                    address = read.addresses[first + number]
                    one.spans.append(Range(address, address + reader.size))
                one.values.append(value)
    for one in made.values():
        one.alike, one.places = len(one.values), reader.first_place(one.values)
    return [one for one in made.values() if one.places]


def _grouped(
    reader: Reader,
    words: Mapping[int, int],
    places: Mapping[int, Place],
    containers: Sequence[Container],
    wanted: Test,
    looked: Set[int],
) -> list[Field]:
    """Words as fields: a container's together, others by the block they point to. Words in `looked`
    head no container; for others that is found out when it is asked for."""
    taken = merge_ranges(span for container in containers for span in container.spans)
    order = list(places)

    def within(spans: Iterable[Range]) -> list[Place]:
        found = [order[bisect_left(order, span.start) : bisect_left(order, span.end)] for span in spans]
        return [places[address] for part in found for address in part]

    fields = [Field(made.spans, within(made.spans), made) for made in containers]
    # Words that point to one block are one field, such as a buffer's begin and end.
    same: dict[int, Field] = {}
    for address, place in places.items():
        if range_at(taken, address) is None:
            one = same.setdefault(place.block, Field([], []))
            one.spans.append(Range(address, address + reader.size))
            one.places.append(place)
            if address not in looked and wanted(place):
                one.look = partial(headed, reader, address, words[address], place)
    return fields + list(same.values())


def _arrays(reader: Reader, places: Mapping[int, Place]) -> Iterator[Container]:
    """Arrays of pointers inside the owner: buckets of hash tables, and others."""
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


# -- groups of similar fields: for example, 200 pointers to objects of one type


def group_fields(fields: Sequence[Field], name: Callable[[Field], str]) -> list[list[Field]]:
    """Fields one by one, or in groups of at least ALIKE; largest groups and fields first. `name`:
    what a field leads to, the same for all of a type or size."""
    found = [group for same in _by_target(fields, name) for group in _by_amount(same)]
    return sorted(found, key=lambda group: -retained_by(group).bytes)


def retained_by(fields: Iterable[Field]) -> Totals:
    """What fields of one owner retain together."""
    return Totals.sum_of(one.totals for one in fields)


def _by_target(fields: Sequence[Field], name: Callable[[Field], str]) -> Iterator[list[Field]]:
    """Fields to the same kind of block, in the order given; the others one by one."""
    by_place: dict[tuple[str, int, int], list[Field]] = {}
    for number, one in enumerate(fields):
        place = one.places[0] if one.places else None
        if place is None or one.name or one.values:
            by_place["", -1, number] = [one]
        else:
            by_place.setdefault((one.found.what if one.found else "", place.size, place.offset), []).append(one)
    for same in by_place.values():
        if len(same) < ALIKE:
            yield from ([one] for one in same)
            continue
        by_name: dict[str, list[Field]] = {}
        for one in same:
            by_name.setdefault(name(one), []).append(one)
        yield from by_name.values()


def _by_amount(same: Sequence[Field]) -> Iterator[list[Field]]:
    """Fields of one kind that retain about as much together; the others one by one."""
    order = sorted(same, key=lambda one: -one.totals.bytes)
    first = 0
    for at in range(1, len(order) + 1):
        if at < len(order) and order[at].totals.bytes * RATIO >= order[first].totals.bytes:
            continue
        if at - first >= ALIKE:
            yield order[first:at]
        else:
            yield from ([one] for one in order[first:at])
        first = at
