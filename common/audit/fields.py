"""Divide the words of an owner (a block or a root) into fields, and compute the memory that each
field retains alone.

The nodes of a container point to one another, so no node dominates the others: only all words of
the owner that refer to the container retain it. The words that form the head of one container are
therefore one field."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.hashes import recognise_chained_table
from findleaks.audit.containers.reader import BlockPlace, ContainerReader
from findleaks.audit.containers.recognise import NEAR, Test, find_containers, recognise_one_word_head
from findleaks.audit.pointer_words import MANY, OwnerWords, read_owner_words
from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import NO_OBJECT
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.value_classes import NamedTuple, dataclass, field

# Maximum number of fields of one owner; further ones are merged by the size of their blocks
MOST = 4096
# Maximum number of pointers outside arrays that are examined. If an owner has more, only the sizes
# of the blocks that they refer to are read.
LOOKED = 8 * MOST
CHUNK = 1 << 16  # words grouped by target between two checks for Ctrl-C

RUN = 8
"""Fewest pointers to similar blocks, with only zeros between them, that are tried as buckets of a
hash table."""

ALIKE = 8  # fewest similar fields that form one row; fewer are shown one by one
RATIO = 2  # the largest field of a group retains at most this many times as much as the smallest

NOTHING = Totals(0, 0)


@dataclass
class Field:
    """One or several words of an owner that form a field.

    `look` finds the container whose head consists of these words. It is called only for fields that
    are shown, because it walks all nodes."""

    spans: list[Range]  # addresses of the words; only the first word if there are many
    places: list[BlockPlace]  # blocks that the words point to; only the first if there are many
    found: Optional[Container] = None
    name: str = ""  # name of the register, for a field in a register
    totals: Totals = NOTHING
    node: int = 0  # number of this field as a node in Fields.tree
    look: Optional[Callable[[], Optional[Container]]] = None
    # Values of all words; only set if there are many.
    values: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    # Number of fields merged into this one. They all refer to objects of the type `type`, or, if
    # this is "", to blocks of about the same size. `size_keys`: see `size_key`.
    alike: int = 1
    type: str = ""
    size_keys: Set[int] = frozenset()

    @property
    def container(self) -> Optional[Container]:
        """The container whose head consists of these words; None if there is none."""
        if self.look is not None:
            self.found, self.look = self.look(), None
        return self.found


class Fields(NamedTuple):
    """The fields of one owner."""

    all: list[Field]  # the largest first
    tree: Dominators
    shared: Totals  # memory that no field retains alone, but several retain together


def read_fields(
    session: Session,
    reader: ContainerReader,
    whole: Dominators,
    node: int,
    memory: Sequence[Range],
    registers: Iterable[tuple[str, int]] = (),
) -> Fields:
    """Return the fields of the owner that is `node` in the tree `whole`.

    The owner's words are in `memory` and in `registers` (name, value)."""
    read = read_owner_words(session, reader, memory)
    whole_arrays = [_array_field(reader, *run) for run in read.runs]
    named = [Field([], [place], None, name) for name, value in registers for place in [reader.place(value)] if place is not None]
    named = list({one.places[0].block: one for one in named}.values())
    if len(read.values) > LOOKED:
        return _with_totals(session, whole, node, [*whole_arrays, *_group_by_target(session, reader, read), *named])
    words = {address: value for address, value in zip(read.addresses, read.values) if range_at(reader.heaps, value) is not None}
    if node >= 0:  # a block, in which a collector's links keep nothing alive
        is_excluded = session.graphs.is_excluded
        words = {address: value for address, value in words.items() if not is_excluded(node, address, value)}
    places = {address: place for address, value in words.items() for place in [reader.place(value)] if place is not None}
    held: dict[int, bool] = {}

    def is_wanted(place: BlockPlace) -> bool:
        if place.block not in held:
            held[place.block] = whole.idom(place.block) == node
        return held[place.block]

    arrays = list(_arrays(reader, places))
    taken = merge_ranges(span for container in arrays for span in container.spans)
    left = {address: value for address, value in words.items() if range_at(taken, address) is None}
    alone = _find_same_target(left, places)
    containers: list[Container] = []
    found: Optional[Fields] = None
    while True:
        heads = find_containers(reader, left, is_wanted, alone.__contains__) if len(left) <= MOST else []
        if found is not None and not any(made.words for made in heads if not any(made is one for one in containers)):
            return found  # no new container took a word of another field
        containers = heads
        fields = _group_words(reader, words, places, [*arrays, *containers], is_wanted, alone if len(left) <= MOST else words.keys())
        found = _with_totals(session, whole, node, [*whole_arrays, *_merge_by_target(session, fields), *named])
        more = _find_near_shared(left, places, found.tree) - alone if len(left) <= MOST else set()
        if not more:
            return found
        alone |= more


def _with_totals(session: Session, whole: Dominators, node: int, fields: list[Field]) -> Fields:
    """Return the fields with the memory that each retains alone, and the memory that only several
    retain together."""
    tree = whole.within(node, len(fields))
    for number, one in enumerate(fields):
        if one.values:
            tree.root_words(one.values, number)
        else:
            tree.refer(number, sorted({place.block for place in one.places}))
        one.node = root_node(number)
    session.compute(tree, "computing what fields retain")
    for one, totals in zip(fields, tree.by_root()):
        one.totals = totals
    kept = sorted((f for f in fields if f.totals.blocks), key=lambda f: -f.totals.bytes)
    return Fields(kept, tree, tree.sum_retained(SHARED))


def _find_same_target(words: Mapping[int, int], places: Mapping[int, BlockPlace]) -> set[int]:
    """Return the addresses of words that point to the same block as another word."""
    by_block: dict[int, list[int]] = {}
    for address in words:
        if address in places:
            by_block.setdefault(places[address].block, []).append(address)
    return {address for same in by_block.values() if len(same) > 1 for address in same}


def _find_near_shared(words: Mapping[int, int], places: Mapping[int, BlockPlace], tree: Dominators) -> set[int]:
    """Return the addresses of words near a word whose block is also reached from another field.
    Such words may be the head and the tail of one list, which form one field. A word without such a
    neighbour is a separate field, even if it is the head of a container."""
    order = list(words)
    found: set[int] = set()
    for number, address in enumerate(order):
        if address in places and tree.idom(places[address].block) in (None, SHARED):
            found.update(order[max(number - NEAR, 0) : number + NEAR + 1])
    return found


def _array_field(reader: ContainerReader, run: Range, values: array[int]) -> Field:
    """Return a field for an array of pointers inside the owner."""
    start, end = run
    made = recognise_chained_table(reader, start, end, (start, end), whole=True) or Container(
        "array of pointers", start, end, len(values), "pointers"
    )
    return Field([run], reader.first_place(values), made, values=values)


def size_key(size: int) -> int:
    """Return a key that is equal for sizes that are about the same."""
    # Below 1 KiB, each size is its own key. Above, the key consists of the bit length and the four
    # highest bits: 5,000 and 5,100 have the same key, 5,000 and 6,000 do not.
    bits = size.bit_length()
    return size if bits <= 10 else bits << 10 | size >> bits - 4


def _describe_target(session: Session, block: int, size: int) -> tuple[str, int]:
    """Return (type, 0) for a block whose object has a type, and ("", key of its size) for other
    blocks. Targets with the same result are similar: an allocator can return blocks of different
    sizes for objects of one size."""
    known = session.object_types
    number = known.types[block] if known is not None else NO_OBJECT
    return (known.names[number], 0) if known is not None and number < len(known.names) else ("", size_key(size))


def _merge_by_target(session: Session, fields: list[Field]) -> list[Field]:
    """Return at most MOST fields. The others are merged by the types or sizes of their blocks."""
    if len(fields) <= MOST:
        return fields
    together: dict[tuple[str, int], list[Field]] = {}
    for one in fields:
        if one.found is None:
            together.setdefault(_describe_target(session, one.places[0].block, one.places[0].size), []).append(one)
    made = [one for one in fields if one.found is not None]
    for (name, _), same in together.items():
        values = array("Q", [place.start + place.offset for one in same for place in one.places])
        keys = {size_key(one.places[0].size) for one in same}
        made.append(Field(same[0].spans[:1], same[0].places[:1], values=values, alike=len(same), type=name, size_keys=keys))
    return made


def _group_by_target(session: Session, reader: ContainerReader, read: OwnerWords) -> list[Field]:
    """Return one field for each type or size of the blocks that the words refer to."""
    made: dict[tuple[str, int], Field] = {}
    keys: dict[tuple[str, int], set[int]] = {}
    known: dict[tuple[int, int], Field] = {}  # by the number of the type, and the size
    types = session.object_types.types if session.object_types is not None else None
    for first in range(0, len(read.values), CHUNK):
        session.report_progress("reading fields", first / len(read.values))
        some = read.values[first : first + CHUNK]
        for number, (value, block, size) in enumerate(zip(some, *reader.blocks.find_all(some))):
            if size:
                key = types[block] if types is not None else NO_OBJECT, size
                one = known.get(key)
                if one is None:
                    target, address = _describe_target(session, block, size), read.addresses[first + number]
                    if target not in made:
                        made[target] = Field([Range(address, address + reader.size)], [], type=target[0])
                    one = known[key] = made[target]
                    keys.setdefault(target, set()).add(size_key(size))
                one.values.append(value)
    for target, one in made.items():
        one.alike, one.places, one.size_keys = len(one.values), reader.first_place(one.values), keys[target]
    return [one for one in made.values() if one.places]


def _group_words(
    reader: ContainerReader,
    words: Mapping[int, int],
    places: Mapping[int, BlockPlace],
    containers: Sequence[Container],
    wanted: Test,
    looked: Set[int],
) -> list[Field]:
    """Return words as fields: all words of a container form one field, and so do other words that
    point to one block. The words in `looked` head no container. Whether another word heads a
    container is examined when its field is shown."""
    taken = merge_ranges(span for container in containers for span in container.spans)
    order = list(places)

    def within(spans: Iterable[Range]) -> list[BlockPlace]:
        found = [order[bisect_left(order, span.start) : bisect_left(order, span.end)] for span in spans]
        return [places[address] for part in found for address in part]

    fields = [Field(made.spans, within(made.spans), made) for made in containers]
    # Words that point to one block are one field: for example, the begin and end of a buffer.
    same: dict[int, Field] = {}
    for address, place in places.items():
        if range_at(taken, address) is None:
            one = same.setdefault(place.block, Field([], []))
            one.spans.append(Range(address, address + reader.size))
            one.places.append(place)
            if address not in looked and wanted(place):
                one.look = partial(recognise_one_word_head, reader, address, words[address], place)
    return fields + list(same.values())


def _arrays(reader: ContainerReader, places: Mapping[int, BlockPlace]) -> Iterator[Container]:
    """Yield arrays of pointers inside the owner: buckets of hash tables, and long arrays of other
    pointers."""
    run: list[int] = []
    for address, place in [*places.items(), (0, None)]:
        like = run and place is not None and (len(run) >= MANY or reader.is_alike_or_same(places[run[0]], place))
        if like and reader.is_zero(run[-1] + reader.size, address):
            run.append(address)
            continue
        if len(run) >= RUN:
            start, end = run[0], run[-1] + reader.size
            made = recognise_chained_table(reader, start, end, (start, end), whole=True)
            if made is None and len(run) >= MANY:
                made = Container("array of pointers", start, end, len(run), "pointers")
            if made is not None:
                yield made
        run = [address]


# -- groups of similar fields: for example, 200 pointers to objects of one type


def group_fields(fields: Sequence[Field], name: Callable[[Field], str]) -> list[list[Field]]:
    """Return the fields in groups, the largest first. A group has at least ALIKE similar fields or
    a single one.
    `name` returns the name of a field's target, which is the same for all targets of a type or
    size."""
    found = [group for same in _by_target(fields, name) for group in _by_amount(same)]
    return sorted(found, key=lambda group: -sum_retained(group).bytes)


def sum_retained(fields: Iterable[Field]) -> Totals:
    """Return the memory that these fields of one owner retain, each alone."""
    return Totals.sum_of(one.totals for one in fields)


def _by_target(fields: Sequence[Field], name: Callable[[Field], str]) -> Iterator[list[Field]]:
    """Yield groups of fields with the same kind of target. Fields without such a group are yielded
    as a group of one."""
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
    """Yield groups of fields that retain about the same amount. Fields without such a group are
    yielded as a group of one."""
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
