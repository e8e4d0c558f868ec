"""Find the types of all blocks: spreads types from typed memory, judges ambiguous pointers, and
compares the untyped blocks with typed ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Optional, Union

from findleaks.debuginfo.type_names import shorten_template
from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind
from findleaks.engine.type_spread import DECISION, DEFERRED, LEAST_STRONG, NO_CLAIM, Choosing, Level, Pointers, Question, Role, TypeSpread
from findleaks.types.content import Content
from findleaks.types.counted_boxes import CountedBoxes
from findleaks.types.embedding import CALLABLE, Embedding
from findleaks.types.fingerprints import WITNESSES, Fingerprints
from findleaks.types.heap import HeapView
from findleaks.types.judging import Judge
from findleaks.types.layouts import Layouts
from findleaks.types.member_counts import MemberCounts
from findleaks.types.once_values import find_once_value
from findleaks.types.packing import Packing
from findleaks.types.pool_objects import PoolObjects
from findleaks.types.roots import TypedRoot
from findleaks.types.rules import Rules
from findleaks.types.sampling import merge_pointers
from findleaks.types.sizes import SizeClasses
from findleaks.types.sole_fits import SoleFits
from findleaks.types.specs import Spec
from findleaks.types.tails import Tails

if TYPE_CHECKING:
    from findleaks.types.hint_files import HintFile
    from findleaks.types.recorded import RecordedTypes

ROUNDS = 40  # Maximum number of times that deferred pointers are judged.
# After the first visit, about LEAST_AGAIN pointers and one for each PART blocks are followed again.
LEAST_AGAIN = 1 << 20
PART = 8
# Maximum number of untyped blocks of _DEFINITE, and of _OTHER, that are compared.
MOST_COMPARED = 1 << 16
# Maximum number of elements of an array in a local variable that are followed.
MOST_ELEMENTS = 1 << 14
# Maximum number of blocks of a process in which inferred types are confirmed. For two million, it
# would take 0.08 s, a seventh of the search.
MOST_CONFIRMED = 1 << 20
SOLE_ROUNDS = 2  # Maximum number of times that leaked blocks are compared with all types.
# Maximum number of types of a size that blocks are compared with by their pointers alone.
MOST_SHAPES = 64

# Kinds of blocks, as a bit for each. `compare` visits the blocks of _DEFINITE first.
_DEFINITE = 1 << Kind.DEFINITE
_LEAKED = 1 << Kind.DEFINITE | 1 << Kind.INDIRECT
_OTHER = 1 << Kind.INDIRECT | 1 << Kind.POSSIBLE | 1 << Kind.REACHABLE

_Rule = tuple[int, int, int]
"""Reference, offset and size, which identify a rule (Question.RULE)."""


class Spreading:
    """One search for types."""

    def __init__(
        self,
        spread: TypeSpread,
        heap: HeapView,
        sizes: SizeClasses,
        table: TypeTable,
        modules: Sequence[int],
        usable: int,
        budget: int,
        progress: Callable[[str, float], None],
    ) -> None:
        """Rules explains `modules` and `usable`. `budget`: elements that are visited between two
        calls of `progress`."""
        self.spread, self.heap, self.table = spread, heap, table
        self._budget, self._progress = budget, progress
        self.embedding = Embedding(table)
        self.layouts = Layouts(table, self.embedding, spread, heap.arch.byteorder == "big")
        self.sizes = sizes
        self.rules = Rules(spread, self.embedding, self.layouts, self.sizes, modules, usable)
        self.content = Content(spread, self.layouts, self.rules)
        self.judge = Judge(spread, heap, self.layouts, self.rules, self.content)
        self.packing = Packing(heap, self.layouts, self.rules, self.content, self.judge)
        self._member_counts = MemberCounts(heap, self.layouts, self.rules)
        self._tails = Tails(spread, heap, self.layouts, self.content, self.rules, self.packing)
        self._again = LEAST_AGAIN + len(heap.blocks) // PART
        self._counted_boxes = CountedBoxes(heap, self.layouts, self.content, self.rules)
        self._sole_fits = SoleFits(heap, self.layouts, self.content, self.rules)
        self.fingerprints = Fingerprints(spread, heap, self.layouts, self.content, self.rules)
        # By rule: the deferred pointers, the last answer, and the number of claims and arguments
        # when the rule was judged last.
        self._pending: dict[_Rule, Pointers] = {}
        self._answers: dict[_Rule, int] = {}
        self._refused: dict[_Rule, Pointers] = {}  # Pointers of rules that were answered NO_CLAIM.
        self._judged: dict[_Rule, tuple[int, bool, bool]] = {}
        self._roots = 0  # The number of typed parts of memory outside of blocks.
        self._retried = 0  # The number of claims when hints were tried again.
        self.pools: Optional[PoolObjects] = None
        heap.claims = spread.claims()

    def add_classes(self, words: Iterable[tuple[int, str]]) -> set[int]:
        """Claim objects of C++ classes. `words`: the first word of such objects, and the name of
        their class. Return the first words of those classes whose objects are not claimed because
        another type may begin with such an object."""
        known = {_plain(self.table.name(number)): number for number in self.embedding.polymorphic()}
        rows, embedded = [], set()
        for word, name in sorted(words):
            number = known.get(_plain(name))
            if name.startswith(CALLABLE) if number is None else self.embedding.is_first_member(number):
                embedded.add(word)
            elif number is not None:
                rows.append((word, number))
        layouts = array("I", [self.layouts.number(Spec(number)) for _, number in rows])
        least = array("Q", [self.table.sizes[number] for _, number in rows])
        if rows:
            self.spread.seed_words(array("Q", [word for word, _ in rows]), layouts, least)
        return embedded

    def add_roots(self, addresses: Sequence[int], types: Sequence[int]) -> None:
        """Add variables, which are typed memory outside of blocks. Skip those without pointers."""
        layouts, table = {}, self.table
        for number in set(types):
            offset, value = find_once_value(table, number) or (0, number)
            if self.layouts.has_pointers(value):
                layouts[number] = offset, self.layouts.number(Spec(value)), table.size_of(value) or table.word
        known = ((address, layouts[number]) for address, number in zip(addresses, types) if number in layouts)
        found = [(address + offset, layout, size) for address, (offset, layout, size) in known]
        columns = zip(*found) if found else ((), (), ())
        starts, numbers, sizes = (array(code, column) for code, column in zip("QIQ", columns))
        self.add_roots_of_layouts(starts, sizes, numbers)
        if self.pools is not None:
            self.pools.add_variables(addresses, types)

    def use_slots(self, files: Iterable[HintFile]) -> None:
        """Use hint files. Call this before anything else. Raises UsageError for a hint that is
        impossible."""
        from findleaks.types.slots import Slots  # Few programs have hints.

        slots = Slots(self.table, self.layouts, self.spread, self.sizes, self.heap.number)
        for file in files:
            slots.add(file)
        self.rules.slots = slots
        rows = sorted((word, self.layouts.number(Spec(one.type, one.is_array)), self.table.size_of(one.type)) for word, one in slots.seeds)
        if rows:
            words, layouts, least = (array(code, column) for code, column in zip("QIQ", zip(*rows)))
            self.spread.seed_words(words, layouts, least, Level.HINT)

    def add_memory(self, address: int, size: int, layout: int) -> None:
        """Add typed memory of `size` bytes that is not a block."""
        self.add_roots_of_layouts(array("Q", [address]), array("Q", [size]), array("I", [layout]))

    def add_roots_of_layouts(self, addresses: array[int], sizes: array[int], layouts: array[int]) -> int:
        """Add typed memory that is not a block: variables, and objects in pools. Return the number
        of the first one."""
        first, self._roots = self._roots, self._roots + len(addresses)
        self.spread.add_roots(addresses, sizes, layouts)
        return first

    def add_locals(self, roots: Iterable[TypedRoot]) -> None:
        """Claim untyped blocks that local variables refer to. These claims are inferred, because a
        variable may be uninitialised, or no longer in use."""
        for one in roots:
            size = self.table.size_of(one.type) or self.table.word
            for part in self.layouts.shape(Spec(one.type)):
                count = min(max(size - part.start, 0) // part.stride, part.number or MOST_ELEMENTS, MOST_ELEMENTS)
                leaves = [leaf for leaf in part.leaves if leaf.role == Role.REFERENCE]
                for start in range(one.address + part.start, one.address + part.start + count * part.stride, part.stride) if leaves else ():
                    for leaf in leaves:
                        self._add_local(start + leaf.offset, leaf.reference)

    def _add_local(self, address: int, reference: int) -> None:
        value = self.heap.word(address)
        place = self.heap.place(value) if value else None
        if place is not None and not self.heap.claims[place.block]:
            found = self.rules.candidates(reference, place.offset, place.size)
            if len(found) != 1:
                return
            layout, level = self.layouts.number(found[0].spec), found[0].level
            is_buffer = (
                level == Level.ARRAY and self.layouts.references[reference].counted and any(self.content.fits([layout], [place.block]))
            )
            if is_buffer or level in (Level.EXACT, Level.CONTAINER):
                self.spread.seed(place.block, layout, level, True)

    def add_recorded(self, recorded: RecordedTypes, graph: Graph) -> None:
        """Claim untyped blocks by their recorded allocation stacks."""
        kinds = graph.kinds()
        for _ in range(SOLE_ROUNDS):
            claimed = self.spread.claimed
            typed = self.spread.sample(WITNESSES)
            for wanted in (_DEFINITE, _OTHER):
                for layout, some in recorded.find(typed, self.spread.find_untyped(kinds, wanted, MOST_COMPARED)):
                    self.spread.seed_all(array("I", some), layout, Level.LEARNED)
            if self.spread.claimed == claimed:
                break
            self.settle()

    def settle(self) -> None:
        """Spread types and judge deferred pointers until nothing changes. Claims that are certain
        come first, and those of doubtful elements of arrays, which may be unused, come last."""
        self.judge.allows_rest = False
        self._run()
        if self.spread.disputes():
            self.spread.retract()
            self.spread.revisit(())
            self._run()
        for certain in (True, False):
            self._judge_all(certain)
        for _ in range(ROUNDS):
            claimed = self.spread.claimed
            self.spread.queue_doubtful()
            self._run()
            if self.spread.claimed == claimed:
                break
            self._judge_all(False)

    def confirm(self) -> None:
        """Make inferred claims certain that follow from certain pointers. This is done last: types
        are judged by samples of pointers, and pointers that are followed again would change the
        samples. In large heaps, it would take too much time."""
        if len(self.heap.blocks) > MOST_CONFIRMED:
            return
        self.spread.confirm()
        self._run()
        if self.spread.disputes():
            self.spread.retract()

    def _judge_all(self, certain: bool) -> None:
        """Judge deferred pointers, and follow them, until nothing changes."""
        for _ in range(ROUNDS):
            if not self._judge(certain):
                break
            before = self.spread.followed
            self._run()
            self._again -= self.spread.followed - before

    def poll(self) -> None:
        """Report progress. Raises Interrupted if the user asked to stop."""
        self._progress("finding types", 0.0)

    def _run(self) -> None:
        """Visit all queued memory, and answer the engine's questions."""
        while True:
            self.content.set_flags()
            is_done = self.spread.run(self._budget)
            questions = self.spread.questions()
            if questions:
                self.spread.answer(questions, self.rules.answers(questions))
            elif is_done and (self.pools is None or not self.pools.collect()):
                return
            self.poll()

    def _judge(self, certain: bool) -> bool:
        """Judge the deferred pointers. Queue the pointers of rules that have an answer, to follow
        them again. Return False if nothing is queued."""
        for one in self.spread.take_deferred():
            key = one.reference, one.offset, one.size
            self._pending[key] = merge_pointers(self._pending[key], one) if key in self._pending else one
        again, claimed = self._open_types(), self.spread.claimed
        for key, found in list(self._pending.items()):
            if self._judged.get(key) == (claimed, certain, self.judge.allows_rest):
                continue
            self.poll()
            self._judged[key] = claimed, certain, self.judge.allows_rest
            is_doubtful = self.pools is not None and self.pools.are_doubtful(found)
            if self._use_answer(key, NO_CLAIM if is_doubtful else self.judge.judge(found, certain)):
                again.add(found.reference)
        if not again and not certain:
            again = self._retry_hints(claimed)
        if not again and not certain and self._add_tails():
            return True
        if not again and not certain:
            again = self._judge_parts()
        if not again and not certain and not self.judge.allows_rest:
            self.judge.allows_rest = True
            return self._judge(certain)
        if not again or self._again <= 0:
            return False
        self.spread.revisit(sorted(again))
        return True

    def _retry_hints(self, claimed: int) -> set[int]:
        """Return the references of hinted pointers to blocks that contradicted the hint. The blocks
        that they refer to may have got other types since. `claimed`: the number of claims."""
        if claimed == self._retried:
            return set()
        self._retried = claimed
        found = [key for key in self._pending if self.rules.is_hinted(*key)]
        for key in found:
            del self._pending[key]
        return {key[0] for key in found}

    def _use_answer(self, key: _Rule, answer: Optional[int]) -> bool:
        """Give the engine the answer to a rule. Return whether its pointers have to be followed
        again."""
        if answer is None or (answer == self._answers.get(key) and not answer & DECISION):
            return False
        if answer != self._answers.get(key):
            self.spread.answer(_question(key), array("I", [answer]))
            self._answers[key] = answer
        if answer == NO_CLAIM:
            self._refused[key] = self._pending[key]
        # If pointers of this rule stay without a claim, the engine defers them again.
        self._pending.pop(key, None)
        return True

    def _open_types(self) -> set[int]:
        """Find types after which other objects follow in the same block. Return the references of
        pointers that have to be followed again."""
        opened = self._tails.find_open([*self._pending.values(), *self._refused.values()])
        if not opened:
            return set()
        self.content.answer_again(self.rules.open(opened))
        self._judged.clear()
        answers = {key: self.rules.answers(_question(key))[0] for key in (*self._pending, *self._refused)}
        clear = {key: answer for key, answer in answers.items() if answer not in (NO_CLAIM, DEFERRED)}
        return {key[0] for key, answer in clear.items() if self._use_answer(key, answer)}

    def _add_tails(self) -> bool:
        """Add the objects that follow the typed values of blocks to the layouts of the blocks.
        Return whether there are any."""
        self.poll()
        found = list(self._tails.find())
        for blocks, layout in found:
            self.spread.relabel(blocks, layout)
        return bool(found)

    def _judge_parts(self) -> set[int]:
        """Judge the deferred pointers to parts of blocks. Return the references of pointers that
        have to be followed again."""
        left = [*self._pending.values(), *self._refused.values()]
        self.poll()
        for pointee, least in self.packing.find_truncated(left).items():
            self.content.answer_again(self.rules.add_truncated(pointee, least))
            self._judged.clear()
        found = {**self.packing.find_parts(left), **dict(self._member_counts.find(left))}
        return {key[0] for key, answer in found.items() if answer != self._answers.get(key) and self._use_answer(key, answer)}

    def compare(self, graph: Graph) -> None:
        """Claim leaked and other untyped blocks that resemble typed ones."""
        kinds = graph.kinds()
        self.fingerprints.learn(self.spread.sample(WITNESSES))
        compared = []
        for wanted in (_DEFINITE, _OTHER):
            blocks = self.spread.find_untyped(kinds, wanted, MOST_COMPARED)
            compared.append(self._compare(blocks, blocks))
        # Types of blocks that were found in the first rounds exclude types of the blocks that refer
        # to them.
        for alike, shaped in compared:
            self._compare(self._list_untyped(alike), self._list_untyped(shaped))
        finders: tuple[Union[CountedBoxes, SoleFits], ...] = (self._counted_boxes, self._sole_fits)
        for finder in finders:
            for _ in range(SOLE_ROUNDS):
                found = list(finder.find(self.spread.find_untyped(kinds, _LEAKED, MOST_COMPARED)))
                if not found:
                    break
                for layout, some in found:
                    self.spread.seed_all(some, layout, Level.SHAPE)
                self.settle()

    def _compare(self, alike: array[int], shaped: array[int]) -> tuple[array[int], array[int]]:
        """Claim the blocks of `alike` that resemble typed blocks. Then claim those remaining blocks
        of `shaped` whose pointers to typed blocks fit only one type. Return the blocks of both that
        were compared and may be claimed later: types that are found in between may exclude all
        types but one."""
        self._progress("comparing blocks", 0.0)
        claimed = self.spread.claimed
        typeless = set().union(*map(self.judge.find_typeless, self._pending.values()))
        if typeless:
            alike, shaped = (array("I", [index for index in some if index not in typeless]) for some in (alike, shaped))
        resembling, fitting = self._claim_alike(alike), self._claim_shaped(shaped)
        if self.spread.claimed != claimed:
            self.settle()
        return resembling, fitting

    def _list_untyped(self, blocks: array[int]) -> array[int]:
        """Return the blocks that have no type."""
        claims = self.heap.claims
        return array("I", [index for index in blocks if not claims[index]])

    def _claim_alike(self, blocks: array[int]) -> array[int]:
        """Claim the blocks that resemble only one type. Return those that resemble any."""
        # Begin with the types that have the most pointers. A block to which such a pointer refers
        # then gets the type that the pointer declares, not the type that the block resembles.
        found, resembling = self.fingerprints.find(blocks)
        for layout in sorted(found, key=self.layouts.count_references, reverse=True):
            self.spread.seed_all(found[layout], layout, Level.FINGERPRINT)
            self._run()
        return resembling

    def _claim_shaped(self, blocks: array[int]) -> array[int]:
        """Claim the blocks whose pointers to typed blocks fit only one type. Return those of whose
        size there are types with such pointers."""
        claims, by_size, compared = self.heap.claims, {}, array("I")  # type: ignore[var-annotated]
        known = self.embedding.parts(self.layouts.specs[layout].type for layout in self.fingerprints.layouts)
        for index, size in zip(blocks, self.heap.blocks.columns_of(blocks).size):
            if not claims[index]:
                by_size.setdefault(size, []).append(index)
        for size, left in by_size.items():
            self._progress("comparing blocks", 0.0)
            options = [one for one in self.rules.of_size(size) if self.layouts.count_pointers(one.spec, known) >= LEAST_STRONG]
            for layout, some in self.content.group_by_choice(options[:MOST_SHAPES], Choosing.BY_SHAPE, left).items():
                self.spread.seed_all(some, layout, Level.SHAPE)
            compared.extend(left if options else ())
        return compared


def _question(key: _Rule) -> array[int]:
    """Return the question that a rule answers."""
    return array("Q", (Question.RULE << 32 | key[0], *key[1:]))


def _plain(name: str) -> str:
    """Return a class's name in one form for names from demanglers and from compilers."""
    return shorten_template(name).replace(" ", "")
