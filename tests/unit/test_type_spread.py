"""The spread of types: both engines return the same results for random heaps with random layouts."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import graphs
import pytest
from spreads import ENGINES, one_heap

from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.engine.type_spread import (
    DECISION,
    DEFERRED,
    EXCLUDING,
    LAYOUT_MASK,
    LEVEL_SHIFT,
    NO_CLAIM,
    NO_FEATURE,
    NO_VALUE,
    NOT_ARRAY,
    POOL_POINTER,
    QUESTION,
    ROOT,
    UNSPLIT,
    Choosing,
    Feature,
    Flag,
    Level,
    Question,
    Role,
    TypeSpread,
    describe_capacity,
)
from findleaks.target.arch import Arch
from findleaks.target.base import Range

USED = (Flag.LENGTH, Flag.LENGTH * 2, Flag.LENGTH * 3 | Flag.RING, Flag.LENGTH * 2 | Flag.OPTIONAL, Flag.TABLE, Flag.END)
FLAGS = (0, 0, 0, Flag.ANYTHING, Flag.OPTIONAL, Flag.OPTIONAL | Flag.NUMBER, *USED)
REFERENCES, LAYOUTS, DECISIONS, OWNER_WORDS = 9, 12, 6, 5


def random_layout(rng: random.Random, spread: TypeSpread, word: int) -> int:
    """Add a layout of one to three groups of elements with slots and checks. Some groups extend to the end of the memory."""
    groups: list[int] = []
    slots: list[int] = []
    checks: list[int] = []
    for _ in range(rng.randrange(1, 4)):
        words = rng.randrange(1, 5)
        first, first_check = len(slots) // 2, len(checks) // 2
        for offset in range(words):
            way = rng.random()
            if way < 0.6:
                slots += (offset * word, rng.randrange(REFERENCES))
            elif way < 0.8:
                role = rng.choice((Role.CODE, Role.DATA, Role.PLAIN, Role.CHARACTERS, Role.FLOAT))
                is_capacity = role == Role.PLAIN and offset % 2
                checks += (offset * word, role + (describe_capacity((1, 8, 24)[words % 3], -word) if is_capacity else 0))
        start, count = rng.choice((0, 0, 0, word, 3 * word)), rng.choice((0, 1, 1, 3))
        groups += (start, words * word, count, first, len(slots) // 2, first_check, len(checks) // 2)
    return spread.add_layout(groups, slots, checks)


def make_answers(seed: int, questions: array[int]) -> array[int]:
    """Return answers to questions. Equal questions get equal answers. Most answers are claims, and few claims contradict others."""
    made = array("I")
    for at in range(0, len(questions), QUESTION):
        first, offset, third = questions[at : at + QUESTION]
        rng = random.Random(f"{seed} {first} {offset} {third}")
        question = first >> 32
        if question == Question.RULE:
            way = rng.random()
            claim = 1 + rng.randrange(LAYOUTS) | rng.choice((Level.EXACT, Level.CONTAINER, Level.BASE)) << LEVEL_SHIFT
            decision = DECISION | rng.randrange(DECISIONS)
            made.append(NO_CLAIM if way < 0.2 else DEFERRED if way < 0.35 else decision if way < 0.6 else claim)
        elif question == Question.AGREES:
            made.append(rng.randrange(3) if rng.random() < 0.1 else 2)
        elif question == Question.UNREQUESTED:
            made.append(rng.choice((0, 15, 31, third // 2)))
        else:
            made.append(rng.randrange(3))
    return made


def random_options(rng: random.Random, layouts: list[int], arrays: bool) -> list[int]:
    """Return the words of one to four options. With `arrays`, some options are arrays, or exclude other layouts."""
    options: list[int] = []
    for layout in rng.sample(layouts, rng.randrange(1, 5)):
        single = rng.choice((NOT_ARRAY, NOT_ARRAY, 0, rng.choice(layouts))) if arrays else NOT_ARRAY
        level = rng.choice((Level.BASE, Level.BASE, Level.ARRAY, Level.LEARNED))
        size = (
            rng.choice((8, 16, 24, 8 | UNSPLIT, 16 | UNSPLIT)) if single == NOT_ARRAY else rng.choice((8, 16, EXCLUDING if single else 24))
        )
        options += (layout | level << LEVEL_SHIFT, single, size)
        if size == EXCLUDING and rng.random() < 0.5:
            options += (layout | level << LEVEL_SHIFT, rng.choice(layouts), size)
    return options


def random_feature(rng: random.Random, word: int) -> int:
    sort = rng.choice(list(Feature))
    if sort == Feature.OWNER_WORD:
        return sort << 8 | rng.randrange(OWNER_WORDS + 1)
    return sort << 8 | 128 + (0 if sort == Feature.BEGINNING else rng.randrange(-2, 3) * word)


def add_decision(rng: random.Random, spread: TypeSpread, layouts: list[int], word: int) -> None:
    keys = sorted(rng.sample(range(40), 20)) if rng.random() < 0.7 else []
    claims = [rng.choice(layouts) | Level.LEARNED << LEVEL_SHIFT for _ in keys]
    feature = random_feature(rng, word) if keys else NO_FEATURE
    spread.add_decision(random_options(rng, layouts, True), feature, keys, claims)


def answer_questions(spread: TypeSpread, seed: int, ask: Callable[[], Optional[array[int]]]) -> list[int]:
    """Return the result of a comparison, after its questions were answered."""
    found = ask()
    while found is None:
        questions = spread.questions()
        spread.answer(questions, make_answers(seed, questions))
        found = ask()
    return list(found)


def settle(spread: TypeSpread, seed: int) -> None:
    while True:
        is_done = spread.run(7)
        questions = spread.questions()
        if questions:
            spread.answer(questions, make_answers(seed, questions))
        elif is_done:
            return


def first_pointers(rows: array[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return owner and place of the first pointer to a block of a pool for each value and reference; later ones may be left out."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for at in range(0, len(rows), POOL_POINTER):
        owner, place, value, reference = rows[at : at + POOL_POINTER]
        found.setdefault((value, reference), (owner, place))
    return found


def run_spread(engine: Engine, heap: graphs.Heap, seed: int) -> dict[str, Any]:
    """Return all results of an engine for a heap. Layouts, roots and seeds are the same for both engines."""
    rng = random.Random(seed)
    blocks = engine.blocks(heap.arch, heap.granule)
    blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
    blocks.seal()
    spread = engine.type_spread(blocks)
    pieces = sorted([*heap.pieces, *heap.root_pieces], key=lambda piece: piece.address)
    spread.use(pieces)
    mapped = [Range(piece.address, piece.address + len(piece.data)) for piece in pieces]
    spread.set_memory(mapped, mapped[::3], mapped[::6])
    layouts = [random_layout(rng, spread, heap.arch.word) for _ in range(LAYOUTS)]
    spread.add_choices(layouts[:2])
    spread.add_choices(layouts[2:3])
    for _ in range(OWNER_WORDS):
        spread.add_owner_word(rng.choice(layouts), rng.randrange(4) * heap.arch.word, rng.choice((1, 2, 4, heap.arch.word)))
    for _ in range(DECISIONS):
        add_decision(rng, spread, layouts, heap.arch.word)
    spread.set_flags(bytearray(rng.choice(FLAGS) for _ in range(REFERENCES)))
    used = [n for n, block in enumerate(heap.blocks) if block.state == State.IN_USE]
    if seed % 3 == 0:
        spread.set_pools(array("I", rng.sample(used, len(used) // 2)))
        inside = rng.choice(used)
        address, size = heap.blocks[inside].start, heap.blocks[inside].size
        spread.add_roots(array("Q", [address]), array("Q", [size]), array("I", [rng.choice(layouts)]))
    for start, data in heap.root_memory:
        spread.add_roots(array("Q", [start]), array("Q", [len(data)]), array("I", [rng.choice(layouts)]))
    words = array("Q", sorted({word for range_ in graphs.VTABLES for word in range(range_.start, range_.end, 5)}))
    spread.seed_words(words, array("I", [rng.choice(layouts) for _ in words]), array("Q", [rng.choice((0, 24)) for _ in words]))
    seeds = [spread.seed(n, rng.choice(layouts), Level.SEED, rng.random() < 0.3) for n in rng.sample(used, min(3, len(used)))]
    found: dict[str, Any] = {"seeds": seeds}
    pooled = array("Q")
    for step in ("first", "again"):
        settle(spread, seed)
        found[step] = list(spread.claims()), list(spread.origins()), spread.take_deferred(), spread.disputes()
        found[f"{step} retracted"] = spread.retract(), list(spread.claims()), list(spread.origins())
        pooled += spread.take_pool_pointers()
        spread.revisit(() if step == "first" else (1, 4))
    found["to pools"] = first_pointers(pooled)
    for _ in range(2):
        spread.queue_doubtful()
        settle(spread, seed)
    found["doubtful"] = list(spread.claims()), list(spread.origins())
    spread.relabel(array("I", rng.sample(used, min(5, len(used)))), rng.choice(layouts))
    found["with layout"] = [list(spread.with_layout(layout, 3)) for layout in layouts]
    settle(spread, seed)
    found["last"] = list(spread.claims()), spread.take_deferred()
    spread.confirm()
    settle(spread, seed)
    found["confirmed"] = list(spread.claims()), list(spread.origins()), spread.take_deferred(), spread.disputes()
    indices = array("I", used[:40])
    found["fits"] = answer_questions(spread, seed, partial(spread.fits, layouts, indices))
    for how in Choosing:
        found[how.name] = answer_questions(spread, seed, partial(spread.choose, random_options(rng, layouts, False), how, indices))
    rows = array("Q", [word for one in found["first"][2] for word in one.untyped][:300])
    labels = array("I", [row % 3 for row in rows[2::3]])
    found["separate"] = spread.separate(rows, labels)
    found["features"] = [list(spread.feature(random_feature(rng, heap.arch.word), rows)) for _ in range(12)]
    found["owner words"] = [list(spread.feature(Feature.OWNER_WORD << 8 | at, rows)) for at in range(OWNER_WORDS + 1)]
    kinds = bytes(rng.randrange(5) for _ in heap.blocks)
    found["untyped"] = list(spread.find_untyped(kinds, 0b1010, 20)), list(spread.sample(3)), spread.claimed, spread.followed
    found["classes"] = spread.group_by_classes(indices, 2), spread.group_by_classes(array("I", [*used, *reversed(used)]), 5)
    return found


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: arch.name)
def test_both_engines_agree(arch: Arch) -> None:
    claimed = deferred = owner_words = pooled = 0
    for seed in (*range(20), 31):  # 31: a block is disputed while its pointers wait to be followed
        heap = graphs.random_heap(seed, 160, 16 if arch.word == 8 else 8, 3, arch=arch)
        said = run_spread(graphs.native(arch), heap, seed)
        assert said == run_spread(graphs.pure(arch), heap, seed), seed
        claimed += sum(1 for claim in said["last"][0] if claim & LAYOUT_MASK)
        deferred += sum(one.total for one in said["first"][2])
        pooled += len(said["to pools"])
        owner_words += sum(value != NO_VALUE for values in said["owner words"] for value in values)
    assert claimed
    assert owner_words
    assert deferred
    assert pooled


@ENGINES
def test_a_list_is_claimed_to_its_end(engine: Engine) -> None:
    spread = one_heap(engine, {0x8000: 0x10000, 0x10000: 0x10040, 0x10040: 0x10020, 0x10020: 0})
    node = spread.add_layout((0, 24, 1, 0, 1, 0, 0), (0, 5))
    spread.add_roots(array("Q", [0x8000]), array("Q", [24]), array("I", [node]))
    assert not spread.run(100)
    questions = spread.questions()
    assert list(questions) == [5, 0, 24]
    spread.answer(questions, array("I", [node | Level.EXACT << LEVEL_SHIFT]))
    assert spread.run(100)
    assert not spread.questions()
    assert [claim & LAYOUT_MASK for claim in spread.claims()[:4]] == [node, node, node, 0]
    assert list(spread.origins()[:3]) == [ROOT, 2, 0]


@ENGINES
@pytest.mark.parametrize(
    ("flags", "words", "claimed"),
    [
        (0, {}, [2, 3, 4]),
        (Flag.LENGTH, {0x8008: 2}, [2, 3]),
        (Flag.LENGTH * 2, {0x8008: 1, 0x8010: 3}, [2, 3, 4]),
        (Flag.LENGTH * 2 | Flag.RING, {0x8008: 1, 0x8010: 1}, [2, 3]),
        (Flag.LENGTH, {0x8008: 4}, [2, 3, 4]),  # more than the block has
        (Flag.END, {0x8008: 0x10008}, [2]),
        (Flag.END, {0x8008: 0x10100}, [2, 3, 4]),  # in another block
        # The pointer refers to the third word: each of the two elements before it takes one byte.
        (Flag.TABLE, {0x8000: 0x10010, 0x10010: 0x0580}, [2]),
        (Flag.TABLE, {0x8000: 0x10010, 0x10010: 0x8005}, [3]),
    ],
)
def test_only_elements_in_use_are_followed(engine: Engine, flags: int, words: dict[int, int], claimed: list[int]) -> None:
    """Block 0 contains three pointers, to blocks 2, 3 and 4."""
    spread = one_heap(engine, {0x8000: 0x10000, 0x10000: 0x10040, 0x10008: 0x10060, 0x10010: 0x10080, **words})
    leaf = spread.add_layout((0, 24, 1, 0, 0, 0, 0), ())
    elements = spread.add_layout((0, 8, 0, 0, 1, 0, 0), (0, 6))
    head = spread.add_layout((0, 8, 1, 0, 1, 0, 0), (0, 5))
    spread.set_flags(bytearray(5) + bytes([flags, 0]))
    spread.add_roots(array("Q", [0x8000]), array("Q", [8]), array("I", [head]))
    claims = {5: elements | Level.ARRAY << LEVEL_SHIFT, 6: leaf | Level.EXACT << LEVEL_SHIFT, Question.UNREQUESTED << 32: 0}
    while not spread.run(100):
        questions = spread.questions()
        spread.answer(questions, array("I", [claims[reference] for reference in questions[::QUESTION]]))
    assert [index for index, claim in enumerate(spread.claims()) if claim & LAYOUT_MASK == leaf] == claimed


@ENGINES
@pytest.mark.parametrize(("flags", "offset"), [(0, (1 << 16) - 8), (0, 1 << 16), (Flag.TABLE, 1 << 16), (Flag.TABLE, (1 << 28) + 8)])
def test_only_ends_of_tables_are_far_from_the_start(engine: Engine, flags: int, offset: int) -> None:
    """Pointers to an offset of 64 KiB or more in a block make no claim on its type, except pointers to the end of a table's elements."""
    blocks = engine.blocks(graphs.X86_64, 16)
    blocks.append([0x10000], [1 << 29], [State.IN_USE])
    blocks.seal()
    spread = engine.type_spread(blocks)
    spread.use([graphs.piece(0x8000, (0x10000 + offset).to_bytes(8, "little"))])
    table = spread.add_layout((0, 8, 0, 0, 0, 0, 0), ())
    head = spread.add_layout((0, 8, 1, 0, 1, 0, 0), (0, 5))
    spread.set_flags(bytearray(5) + bytes([flags]))
    spread.add_roots(array("Q", [0x8000]), array("Q", [8]), array("I", [head]))
    is_near = offset < (1 << 28 if flags else 1 << 16)
    assert spread.run(100) != is_near
    questions = spread.questions()
    assert list(questions) == ([5, offset, 1 << 29] if is_near else [])
    spread.answer(questions, array("I", [table | Level.ARRAY << LEVEL_SHIFT] * is_near))
    assert spread.run(100)
    assert spread.claims()[0] & LAYOUT_MASK == table * is_near


@ENGINES
def test_an_address_of_characters_is_no_text(engine: Engine) -> None:
    """A word of characters is text, unless it is the address of readable memory. Text fits neither a number nor a member of a union."""
    word = int.from_bytes(b"@ZnUUU", "little")
    spread = one_heap(engine, {0x10000: word})
    number = spread.add_layout((0, 24, 1, 0, 0, 0, 1), (), (0, Role.PLAIN))
    member = spread.add_layout((0, 24, 1, 0, 0, 0, 0), ()) | Level.UNION << LEVEL_SHIFT
    for start, is_address in ((word & -0x1000, True), (0x10000, False)):
        spread.set_memory([Range(start, start + 0x1000)], [])
        fits = spread.fits([number], array("I", [0]))
        chosen = spread.choose([member, NOT_ARRAY, 24], Choosing.BY_CONTENT, array("I", [0]))
        assert (fits, chosen) == (array("Q", [is_address]), array("I", [member * is_address]))


@ENGINES
def test_a_flexible_array_of_characters_is_no_address(engine: Engine) -> None:
    """An array of characters does not contain the start address of a block. It may contain text, or an address within a block."""
    for value, fits in ((0x10000, 0), (0x10008, 1), (int.from_bytes(b"abcdefgh", "little"), 1)):
        spread = one_heap(engine, {0x10000: value})
        text = spread.add_layout((0, 8, 1, 0, 0, 0, 1), (), (0, Role.CHARACTERS))
        spread.set_memory([Range(0x10000, 0x11000)], [])
        assert spread.fits([text], array("I", [0])) == array("Q", [fits]), value


@ENGINES
def test_a_void_pointer_is_no_text(engine: Engine) -> None:
    """A block with text in place of a void pointer contradicts the type. Two characters may be a number, but then an array of pointers that
    is a member of a union needs an address."""
    for text, fits, claimed in ((b"abcdef", 0, False), (b"ab", 1, False), ((0x10000).to_bytes(8, "little"), 1, True)):
        spread = one_heap(engine, {0x10000: int.from_bytes(text, "little")})
        pointers = spread.add_layout((0, 8, 0, 0, 1, 0, 0), (0, 5))
        spread.set_flags(bytearray([Flag.ANYTHING] * 6))
        member = pointers | Level.UNION << LEVEL_SHIFT
        spread.set_memory([Range(0x10000, 0x11000)], [])
        assert spread.fits([pointers], array("I", [0])) == array("Q", [fits]), text
        assert spread.choose([member, NOT_ARRAY, 8], Choosing.BY_CONTENT, array("I", [0])) == array("I", [member * claimed]), text


@ENGINES
@pytest.mark.parametrize(("agrees", "size", "chosen"), [(2, 16, True), (0, 16, False), (2, 8, False)])
def test_a_variable_of_the_declared_type_is_evidence(engine: Engine, agrees: int, size: int, chosen: bool) -> None:
    """Block 0 refers to the second word of a variable. `agrees`: the answer for reference 5; for reference 6, it is 0."""
    spread = one_heap(engine, {0x10000: 0x8008})
    first, second = (spread.add_layout((0, 8, 1, 0, 1, 0, 0), (0, reference)) for reference in (5, 6))
    spread.set_flags(bytearray(7))
    spread.set_memory([Range(0x8000, 0x8040), Range(0x10000, 0x11000)], [])
    spread.add_roots(array("Q", [0x8000, 0x8020]), array("Q", [size, 8]), array("I", [first, first]))
    claims = [layout | Level.LEARNED << LEVEL_SHIFT for layout in (first, second)]
    options = [word for claim in claims for word in (claim, NOT_ARRAY, 8)]
    while (found := spread.choose(options, Choosing.BY_CONTENT, array("I", [0]))) is None:
        questions = spread.questions()
        answers = [agrees if word == Question.AGREES << 32 | 5 else 0 for word in questions[::QUESTION]]
        spread.answer(questions, array("I", answers))
    assert found == array("I", [claims[0] * chosen])


@ENGINES
def test_the_target_of_a_target_is_no_text(engine: Engine) -> None:
    """Block 0 refers to block 1, which refers to block 2. All may be nodes of a list, unless block 2 begins with text."""
    for first, fits in ((0, 1), (int.from_bytes(b"abcdef", "little"), 0)):
        spread = one_heap(engine, {0x10000: 0x10020, 0x10020: 0x10040, 0x10040: first})
        node = spread.add_layout((0, 24, 1, 0, 1, 0, 0), (0, 5))
        spread.set_flags(bytearray(6))
        spread.set_memory([Range(0x10000, 0x11000)], [])
        choices = spread.add_choices([node])
        while (found := spread.fits([node], array("I", [0]))) is None:
            questions = spread.questions()
            spread.answer(questions, array("I", [choices] * (len(questions) // QUESTION)))
        assert found == array("Q", [fits])
