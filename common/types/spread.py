"""Finds the types of all blocks: spreads them from typed memory, judges what is ambiguous, and
compares what is left with typed blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from findleaks.allocators.directory import Directory
from findleaks.debuginfo.type_names import shorten_template
from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, State
from findleaks.engine.type_spread import INFERRED, LAYOUT_MASK, ROOT, Level, Role, TypeSpread
from findleaks.types.content import Content
from findleaks.types.embedding import Embedding
from findleaks.types.fingerprints import Fingerprints
from findleaks.types.heap import HeapView
from findleaks.types.judging import Judge
from findleaks.types.layouts import Layouts, Spec
from findleaks.types.roots import TypedRoot
from findleaks.types.rules import Rules
from findleaks.types.sizes import SizeClasses

ROUNDS = 40  # Most times that deferred pointers are judged.
MOST_LEARNED = 1 << 16  # Typed blocks from which fingerprints are learned.
MOST_COMPARED = 1 << 16  # Untyped blocks that are compared with them.
COMPARED = 1 << 12  # Blocks that are compared at a time.
MOST_SHAPES = 64  # Types of a size that blocks are compared with by their pointers alone.
LEAST_STRONG = 2  # Pointers to blocks of the expected type that a shape needs.


class Spreading:
    """One search for types."""

    def __init__(
        self,
        spread: TypeSpread,
        heap: HeapView,
        directory: Directory,
        table: TypeTable,
        modules: Sequence[int],
        budget: int,
        progress: Callable[[str, float], None],
    ) -> None:
        """`modules`: for each type, a bit for each module that has it."""
        self.spread, self.heap, self.table = spread, heap, table
        self._budget, self._progress = budget, progress
        self.embedding = Embedding(table)
        self.layouts = Layouts(table, self.embedding, spread)
        self.sizes = SizeClasses(directory, table.word)
        self.rules = Rules(spread, self.embedding, self.layouts, self.sizes, modules)
        self.content = Content(spread, self.layouts, self.rules)
        self.judge = Judge(heap, self.layouts, self.rules, self.content, spread.origins)
        self.fingerprints = Fingerprints(spread, heap, self.layouts, self.content)
        self.roots: list[TypedRoot] = []
        self.witnesses: dict[int, int] = {}
        heap.claims = spread.claims()

    def add_classes(self, words: Iterable[tuple[int, str]]) -> None:
        """Claim the objects of C++ classes by their first word: pairs of it and the class's
        name."""
        known = {_plain(self.table.name(number)): number for number in self.embedding.polymorphic()}
        rows = sorted((word, known[_plain(name)]) for word, name in words if _plain(name) in known)
        layouts = array("I", [self.layouts.number(Spec(number)) for _, number in rows])
        least = array("Q", [self.table.sizes[number] for _, number in rows])
        if rows:
            self.spread.seed_words(array("Q", [word for word, _ in rows]), layouts, least)

    def add_roots(self, roots: Iterable[TypedRoot]) -> None:
        """Add typed memory outside of blocks that has pointers."""
        for one in roots:
            layout = self.layouts.number(Spec(one.type))
            if any(part.leaves for part in self.layouts.shape(Spec(one.type))):
                self.spread.add_root(one.address, one.size, layout)
                self.roots.append(one)

    def add_locals(self, roots: Iterable[TypedRoot]) -> None:
        """Claim untyped blocks that local variables refer to. These claims are inferred, because a
        variable may be uninitialised, or no longer in use."""
        for one in roots:
            for part in self.layouts.shape(Spec(one.type)):
                for leaf in part.leaves if part.start + part.stride <= one.size else ():
                    if leaf.role == Role.REFERENCE:
                        self._add_local(one.address + part.start + leaf.offset, leaf.reference)

    def _add_local(self, address: int, reference: int) -> None:
        value = self.heap.word(address)
        place = self.heap.place(value) if value else None
        if place is not None and not self.heap.claims[place.block]:
            found = self.rules.candidates(reference, place.offset, place.size)
            if len(found) == 1 and found[0].level in (Level.EXACT, Level.CONTAINER):
                self.spread.seed(place.block, self.layouts.number(found[0].spec), found[0].level, True)

    def settle(self) -> None:
        """Spread types, and judge deferred pointers, until nothing changes: first the certain
        ones."""
        self._run()
        if self.spread.disputes():
            self.spread.retract()
            self.spread.revisit(())
            self._run()
        for certain in (True, False):
            for _ in range(ROUNDS):
                changed = self._judge(certain)
                self._run()
                if not changed:
                    break

    def _run(self) -> None:
        while True:
            while not self.spread.run(self._budget):
                self._progress("finding types", 0.0)
            questions = self.spread.questions()
            if not questions:
                return
            self.spread.answer(questions, self.rules.answers(questions))

    def _judge(self, certain: bool) -> bool:
        """Judge the deferred pointers; return whether there are new claims."""
        changed = False
        again = []
        for found in self.spread.deferred():
            self._progress("finding types", 0.0)
            decision = self.judge.judge(found, certain)
            if decision.answer is not None:
                question = array("Q", [found.reference, found.offset, found.size])
                self.spread.answer(question, array("I", [decision.answer]))
                self.spread.revisit([found.reference])
                changed = True
            for block, one, owner in decision.claims:
                inferred = not one.level.is_certain or self._is_inferred(owner)
                changed |= self.spread.seed(block, self.layouts.number(one.spec), one.level, inferred, owner)
            again.append(found.reference)
        if again:
            self.spread.revisit(sorted(set(again)))
        return changed

    def _is_inferred(self, owner: int) -> bool:
        return owner < ROOT and bool(self.heap.claims[owner] & INFERRED)

    def compare(self, graph: Graph) -> None:
        """Claim leaked and other untyped blocks that resemble typed ones."""
        kinds = graph.kinds()
        claims = self.heap.claims
        typed = [index for index in range(len(claims)) if claims[index] & LAYOUT_MASK]
        step = max(len(typed) // MOST_LEARNED, 1)
        self.fingerprints.learn(typed[::step])
        for wanted in ((Kind.DEFINITE,), (Kind.INDIRECT, Kind.POSSIBLE, Kind.REACHABLE)):
            blocks = self.heap.blocks
            left = [n for n in range(len(claims)) if not claims[n] and kinds[n] in wanted and blocks.state(n) == State.IN_USE]
            for first in range(0, min(len(left), MOST_COMPARED), COMPARED):
                self._progress("comparing blocks", first / len(left))
                self._compare([index for index in left[first : first + COMPARED] if not claims[index]])
            self.settle()

    def _compare(self, blocks: Sequence[int]) -> None:
        found = self.fingerprints.find(blocks)
        for index, one in found.items():
            if self.spread.seed(index, one.layout, Level.FINGERPRINT, True):
                self.witnesses[one.layout] = one.witnesses
        by_size: dict[int, list[int]] = {}
        for index in blocks:
            if index not in found:
                by_size.setdefault(self.heap.blocks.size(index), []).append(index)
        for size, some in by_size.items():
            self._by_shape(size, some)

    def _by_shape(self, size: int, blocks: Sequence[int]) -> None:
        """Claim blocks that are of the only type with pointers to such blocks at these places."""
        specs = [one.spec for one in self.rules.of_size(size)[:MOST_SHAPES]]
        matches = [self.content.match(spec, blocks) for spec in specs]
        for at, index in enumerate(blocks):
            found = [(of[at].strong, spec) for of, spec in zip(matches, specs) if of[at].fits]
            best = max((strong for strong, _ in found), default=0)
            best_specs = [spec for strong, spec in found if strong == best]
            if best >= LEAST_STRONG and len(best_specs) == 1:
                self.spread.seed(index, self.layouts.number(best_specs[0]), Level.SHAPE, True)


def _plain(name: str) -> str:
    """Return a class's name as demanglers and compilers write it alike."""
    return shorten_template(name).replace(" ", "")
