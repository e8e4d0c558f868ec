"""Unused slots of containers: all slots of intact containers are found, and none of damaged or similar structures.
Random bytes cause no exception."""

from __future__ import annotations

import random
from typing import Any, cast

import graphs
import pytest
from containers import DATA, Building
from fake import thread

from findleaks.engine.terms import Heuristic, Kind
from findleaks.session import Session
from findleaks.stale_slots.heap_memory import list_element_sizes
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import cut_out

OWNER = DATA + 0x100


def make_channel(made: Building, rest: list[int]) -> int:
    """Return a block for a channel, at a multiple of 128 bytes."""
    made._next += -made._next % 128
    return made.block(640, *rest)


def make_bounded_channel(made: Building, capacity: int, head: int, tail: int, last: bool = False) -> tuple[list[int], int]:
    """Write a bounded channel. Return the addresses of the words of its messages, by slot, and the address of its first
    stamp. Positions count messages. `last`: the stamp is after the message."""
    mark = 1 << capacity.bit_length()
    slots = made.block(16 * capacity)

    def position(count: int) -> int:
        return count // capacity * 2 * mark + count % capacity

    stamps = {count % capacity: position(count) + 1 for count in range(head, tail)}
    for slot in range(capacity):
        following = next(count for count in range(tail, tail + capacity) if count % capacity == slot)
        words = [stamps.get(slot, position(following)), made.block(40)]
        made.put(slots + 16 * slot, *(words[::-1] if last else words))
    fields = [0] * 32 + [slots, capacity, capacity, 2 * mark, mark]
    fields[0], fields[16] = position(head), position(tail)
    made.put(OWNER, make_channel(made, fields))
    return [slots + 16 * slot + (0 if last else 8) for slot in range(capacity)], slots + (8 if last else 0)


def find_stale(made: Building) -> list[int]:
    """Return the addresses of stale words. Check that both engines agree."""
    found = [list(made.session(engine()).stale_slots) for engine in (graphs.native, graphs.pure)]
    assert found[0] == found[1]
    return [address for start, end in found[0] for address in range(start, end, 8)]


@pytest.mark.parametrize(
    ("capacity", "head", "tail"), [(10, 0, 10), (10, 7, 12), (10, 9, 9), (100, 250, 349), (1, 40, 40), (1, 40, 41), (3, 8, 10)]
)
@pytest.mark.parametrize("last", [False, True])
def test_slots_of_a_bounded_channel(capacity: int, head: int, tail: int, last: bool) -> None:
    made = Building()
    messages, _ = make_bounded_channel(made, capacity, head, tail, last)
    held = {count % capacity for count in range(head, tail)}
    wanted = [address for slot, address in enumerate(messages) if slot not in held]
    assert find_stale(made) == wanted


def test_a_channel_in_use_by_a_thread_is_ignored() -> None:
    for change in range(4):
        made = Building()
        _, first = make_bounded_channel(made, 10, 7, 12)
        assert len(find_stale(made)) == 5
        made.put(first + 16 * change, made.get(first + 16 * change) + 1)
        assert find_stale(made) == []


def test_a_block_with_only_a_stale_referrer_is_leaked() -> None:
    made = Building()
    messages, _ = make_bounded_channel(made, 10, 7, 12)
    session: Session = made.session()
    graph = session.with_heuristics(Heuristic.NONE).graph()
    kinds = {}
    for slot, address in enumerate(messages):
        kinds[slot] = graph.kind(session.directory.blocks.find(made.get(address)))
    assert {slot for slot, kind in kinds.items() if kind == Kind.DEFINITE} == {2, 3, 4, 5, 6}


def make_map(made: Building, keys: int, ascending: bool = True) -> list[int]:
    """Write a BTreeMap of a root with 3 entries and 4 leaves with 6 entries each. Return the addresses of its stale
    words. Values are pointers."""
    end = 1 + 11 * keys + 11
    root = made.block((end + 13) * 8)
    leaves = [made.block((end + 1) * 8) for _ in range(4)]
    number, found = 0, []
    for at, leaf in enumerate(leaves):
        for node, entries in ((leaf, range(6)), (root, range(at, at + 1) if at < 3 else range(0))):
            for entry in entries:
                number += 1
                key = [number * 10 + word if ascending else (number * 7919 + word * 31) % 1000 for word in range(keys)]
                made.put(node + 8 * (1 + keys * entry), *key)
                made.put(node + 8 * (1 + 11 * keys + entry), made.block(24))
    for node, used in ((root, 3), *((leaf, 6) for leaf in leaves)):
        for entry in range(used, 11):
            made.put(node + 8 * (1 + keys * entry), *(5 for _ in range(keys)))
            made.put(node + 8 * (1 + 11 * keys + entry), made.block(24))
            found.append(node + 8 * (1 + 11 * keys + entry))
        made.put(node + 8 * end, used << 16 | (leaves.index(node) if node != root else 0))
    for at, leaf in enumerate(leaves):
        made.put(leaf, root)
        made.put(root + 8 * (end + 1 + at), leaf)
    made.put(OWNER, root, 1, 27)
    return found


def test_entries_of_a_map() -> None:
    made = Building()
    values = make_map(made, 1)
    assert set(values) <= set(find_stale(made))
    assert not any(made.get(address) >= 1 << 20 for address in set(find_stale(made)) - set(values))


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_words_in_use_are_never_stale(keys: int) -> None:
    """Also if keys do not ascend, or have words that ascend together, so that a wrong layout seems more likely."""
    for ascending in (True, False):
        made = Building()
        values = set(make_map(made, keys, ascending))
        pointers = {address for address in find_stale(made) if made.get(address) >= 1 << 20}
        assert pointers <= values


def test_a_map_with_a_wrong_count_is_ignored() -> None:
    for word, value in ((1, 2), (2, 26), (2, 28), (2, 1 << 60)):
        made = Building()
        make_map(made, 1)
        made.put(OWNER + 8 * word, value)
        assert find_stale(made) == []


def test_a_map_in_use_by_a_thread_is_ignored() -> None:
    made = Building()
    make_map(made, 1)
    assert find_stale(made)
    session = made.session()
    target = cast(Any, session.target)
    target._threads = [thread(77, registers={"rdi": made.get(OWNER) + 96})]
    assert list(session.stale_slots) == []


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_handled(seed: int) -> None:
    rng = random.Random(seed)
    made = Building()
    make_bounded_channel(made, 10, 7, 12)
    channel_at = made.get(OWNER)
    make_map(made, 2)
    made.put(OWNER + 64, channel_at)
    addresses = [block.address for block in made.blocks]
    for _ in range(40):
        where = rng.choice(addresses) + 8 * rng.randrange(8)
        made.put(where, rng.choice((0, 1, 1 << 63, (1 << 64) - 1, rng.choice(addresses), OWNER, rng.randrange(1 << 64))))
    made.put(OWNER + 8, rng.choice((1, 16, 1 << 40)))
    find_stale(made)


def test_sizes_of_requests() -> None:
    assert list(list_element_sizes(504 - 8, 31, 8))[:1] == [16]
    assert 40 in list_element_sizes(4096, 100, 8)  # the size class of jemalloc for 4,000 bytes
    assert list(list_element_sizes(7, 31, 8)) == []


def test_parts_around_holes() -> None:
    piece = Piece(100, memoryview(bytes(range(100))))
    assert list(cut_out(piece, [])) == [piece] == list(cut_out(piece, [Range(0, 50), Range(200, 300)]))
    parts = list(cut_out(piece, [Range(90, 110), Range(120, 130), Range(190, 220)]))
    assert [(part.address, bytes(part.data)) for part in parts] == [(110, bytes(range(10, 20))), (130, bytes(range(30, 90)))]
    assert list(cut_out(piece, [Range(0, 1000)])) == []
