"""Group leaked blocks for the user: by content, without suppressed blocks, and merged."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional, cast

from findleaks.allocators.mapped import TYPE
from findleaks.allocators.memory import Memory
from findleaks.audit.block_contents import agree_on_contents, divide_by_object, find_hint, sample_blocks, take_samples
from findleaks.audit.block_type import find_block_type, label_names, name_mapping, source_of
from findleaks.engine.contract import Graph
from findleaks.engine.terms import MARK, NO_LABEL, Group, Kind, Totals
from findleaks.formatting import number
from findleaks.results import amounts
from findleaks.results.amounts import Amount, TypeSource
from findleaks.results.leaks import LeakGroup
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.ranges import range_at, region_at
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.audit.suppressions import Suppressions
    from findleaks.results.sites import Site

EXAMPLES = 3

MANY = 10_000
"""Leaked blocks without a type in their first word are examined one by one up to this number, which
takes about 0.1 s. If there are more, only an example of each group is examined."""

# Match the leak heads in Graph.kinds, which has one byte for each block.
_LEADING = re.compile(b"[" + bytes([Kind.POSSIBLE, Kind.DEFINITE]) + b"]")
_DEFINITE = re.compile(re.escape(bytes([Kind.DEFINITE])))


NAMED = 100
"""Groups whose contents are examined; each takes up to a millisecond."""

_NEXT_TO_NOTHING = 64 << 10  # bytes


def is_negligible(leaked: int, in_use: int) -> bool:
    """Return whether the leaked bytes are negligible: less than 64 KiB, and less than a thousandth
    of the bytes in use."""
    return leaked < _NEXT_TO_NOTHING and 1000 * leaked < in_use


def kind_word(kind: Kind) -> amounts.Kind:
    """Return the name of a kind in results."""
    return cast(amounts.Kind, kind.name.lower())


class Leak(NamedTuple):
    """A group of similar leaked blocks."""

    kind: Kind
    type: str
    hint: str
    smallest: int  # usable size in bytes
    # May differ from `smallest` only in merged groups and in groups of managed objects
    largest: int
    # Blocks in the cycle of the leak head; 1: no cycle; 0: the blocks of the group differ
    cycle: int
    blocks: int
    bytes: int
    indirect_blocks: int
    indirect_bytes: int
    least_indirect: int
    most_indirect: int
    examples: tuple[int, ...]
    site: int = 0  # number of the allocation site if grouped by it; 0: unknown
    # Number and bytes of all blocks that the sampled blocks represent
    estimated: Optional[Totals] = None
    # If the leak heads are managed objects, the runtime's name ("CPython"); else ""
    runtime: str = ""
    # What all untyped blocks contain; "e.g. …" if they differ. See `name_contents`
    contents: str = ""
    # Addresses of leak heads from all parts of the group; () if only the examples are known
    samples: tuple[int, ...] = ()
    source: Optional[TypeSource] = None  # how the type is known; None if there is no type
    is_sure: bool = False  # whether the type is certain

    @property
    def weight(self) -> tuple[int, int]:
        """Sort key: groups with the most bytes come first, equal ones by the address of the first
        example."""
        own = self.estimated.bytes if self.estimated is not None else self.bytes
        return -(own + self.indirect_bytes), self.examples[0] if self.examples else 0

    @property
    def is_mapping(self) -> bool:
        """Whether the leak heads are anonymous mappings."""
        return self.type.startswith(TYPE)

    @property
    def size_words(self) -> str:
        """The usable sizes as a value of the option --size: "48", "48-104"."""
        return str(self.smallest) if self.smallest == self.largest else f"{self.smallest}-{self.largest}"

    def result(self, site: Optional[Site] = None, garbage: Optional[bool] = None) -> LeakGroup:
        """Return the group as a typed result. Without `site`, the result contains only the number
        of the site."""
        return LeakGroup(
            kind=kind_word(self.kind),
            type=self.type or None,
            type_from=self.source if self.type else None,
            type_sure=self.is_sure if self.type else None,
            runtime=self.runtime or None,
            hint=self.hint or None,
            contents=self.contents or None,
            site=site or self.site or None,
            size=self.smallest if self.smallest == self.largest else None,
            sizes=(self.smallest, self.largest),
            cycle=self.cycle,
            blocks=self.blocks,
            bytes=self.bytes,
            estimated=Amount.of_known(self.estimated),
            indirect_blocks=self.indirect_blocks,
            indirect_bytes=self.indirect_bytes,
            indirect_range=(self.least_indirect, self.most_indirect),
            examples=self.examples,
            garbage=garbage,
        )


def list_leaks(session: Session, graph: Graph, suppressions: Optional[Suppressions]) -> list[Leak]:
    """Return groups of DEFINITE blocks and of the heads of POSSIBLE blocks (Graph.heads), in no
    order.
    Groups that a rule of `suppressions` covers are left out, and `suppressions` counts them.

    The engine groups managed objects by class, and other blocks by their first word if that
    identifies a type. The rest (arrays with a cookie, strings, plain structures) is examined one by
    one, because a rule must not suppress a block only because another block of the same size
    matches it."""
    groups = group_leaked_blocks(session, graph)
    if not groups:
        return []
    typed = [_leak_of_typed_group(session, group) for group in groups if _is_typed(group)]
    plain = [group for group in groups if not _is_typed(group)]
    each = suppressions is not None or sum(group.blocks for group in plain) <= MANY
    leaks = _by_content(session, graph, suppressions is not None) if each else _by_examples(session, graph, plain)
    every = [*typed, *((leak, "") for leak in leaks)]
    return [leak for leak, _ in every] if suppressions is None else list(_drop_suppressed(every, suppressions))


def group_leaked_blocks(session: Session, graph: Graph) -> Sequence[Group]:
    """Return the engine's groups of DEFINITE and POSSIBLE blocks."""

    def list_groups() -> Sequence[Group]:
        if graph.has_cycles():
            words = session.pieces(graph.cycle_ranges(), "reading leaked blocks", whole=True)
            graph.represent_cycles(words, session.types.ranges())
        is_any = graph.has_kind(Kind.DEFINITE, 1) or graph.has_kind(Kind.POSSIBLE, 1)
        known = known_types(session) if is_any else None
        marks = known.claims if known is not None else None
        return graph.groups(session.pieces(session.heap_ranges(), "reading leaked blocks"), session.types.ranges(), marks)

    return session.once((group_leaked_blocks, graph), list_groups)


def _is_typed(group: Group) -> bool:
    return bool(group.type_word or group.mark) or group.label != NO_LABEL


def iterate_leak_heads(graph: Graph) -> Iterator[int]:
    """Yield the indices of DEFINITE blocks and of the heads of POSSIBLE ones, ascending."""
    heads, kinds = graph.heads(), graph.kinds()
    if heads is None:
        return (match.start() for match in _LEADING.finditer(kinds))
    return iter(sorted([*(match.start() for match in _DEFINITE.finditer(kinds)), *heads]))


def _drop_suppressed(leaks: Iterable[tuple[Leak, str]], suppressions: Suppressions) -> Iterator[Leak]:
    """Yield the leaks that no rule covers. `leaks`: pairs of a leak and the path of the file that
    defines its type."""
    for leak, module in leaks:
        rule = suppressions.match(leak.type, leak.smallest, leak.hint, module)
        if rule is None:
            yield leak
        else:
            suppressions.add(rule, leak.blocks + leak.indirect_blocks, leak.bytes + leak.indirect_bytes)


def _leak_of_typed_group(session: Session, group: Group) -> tuple[Leak, str]:
    known = session.object_types
    if known is not None and group.label != NO_LABEL:
        leak = _leak(group, label_names(session)[group.label], "", known.runtime, "runtime", True)
        return leak._replace(cycle=1) if known.are_trees else leak, ""
    if group.mark:
        return _leak_of_known_type(session, group), ""
    sure = session.types.is_class(group.type_word)
    module = region_at(session.target.modules(), group.type_word)
    name = session.types.name(group.type_word)
    return _leak(group, name, "", "", "rtti" if sure else "pattern", sure), module.path if module is not None else ""


def _leak_of_known_type(session: Session, group: Group) -> Leak:
    """Return a group of blocks whose type follows from debug information."""
    known = known_types(session)
    found = known.of(session.directory.blocks.find(group.examples[0]), group.size) if known is not None else None
    if found is None:
        return _by_example(session, group)
    return _leak(group, found.name, "", "", source_of(found), found.is_sure)


def _by_example(session: Session, group: Group) -> Leak:
    """Return a group of many blocks. Its hint describes the first block. It has no type, because
    the other blocks may have other types."""
    start = group.examples[0]
    name = find_block_type(session, session.directory.blocks.find(start))
    return _leak(group, "", name or find_hint(session, start, group.size))


def _by_examples(session: Session, graph: Graph, groups: Iterable[Group]) -> Iterator[Leak]:
    samples = sample_blocks(session, graph, _LEADING if graph.heads() is None else _DEFINITE)
    for group in groups:
        yield _by_example(session, group)._replace(samples=tuple(samples.get((group.kind, group.size, group.most_indirect > 0), ())))


class _Shared(NamedTuple):
    """What the blocks of a group have in common: see _by_content."""

    kind: Kind
    name: str
    hint: str
    size: int
    cycle: int
    has_indirect: bool


class _Member(NamedTuple):
    """A leak head: its start (of the representative of a cycle), its bytes, and its indirect
    blocks."""

    start: int
    bytes: int
    indirect: Totals


def _by_content(session: Session, graph: Graph, hints: bool) -> Iterator[Leak]:
    """Group the leak heads that are not managed objects and whose first word does not identify a
    type. They are examined one by one.

    Blocks of a group have the same kind, type, size and cycle, and all or none of them have
    indirect blocks. With `hints` they also have the same hint; otherwise the group has the hint of
    its first block."""
    groups: dict[_Shared, list[_Member]] = {}
    for shared, member in _examine_heads(session, graph, hints):
        groups.setdefault(shared, []).append(member)
    largest = sorted(groups.items(), key=lambda one: -sum(member.bytes + member.indirect.bytes for member in one[1]))
    for count, (shared, members) in enumerate(largest):
        session.report_progress("examining leaked blocks", count / len(largest))
        of_start = {member.start: member for member in members}
        starts = sorted(of_start)
        for contents, part in (divide_by_object(session, starts, shared.size, shared.name) if count < NAMED else {"": starts}).items():
            has_hint = (hints or shared.name) and not shared.name.startswith(TYPE)
            hint = shared.hint if has_hint else find_hint(session, part[0], shared.size)
            yield _leak_of(shared._replace(hint=hint), [of_start[start] for start in part])._replace(contents=contents)


def _examine_heads(session: Session, graph: Graph, hints: bool) -> Iterator[tuple[_Shared, _Member]]:
    """Yield (group, leak head) for the leak heads that _by_content groups."""
    blocks, types, memory = session.directory.blocks, session.types, Memory(session.target)
    ranges = types.ranges()
    kinds, labels = graph.kinds(), session.object_types.types if session.object_types is not None else ()
    known = known_types(session)
    marks = known.claims if known is not None else None
    heads = array("I", iterate_leak_heads(graph))
    if labels:
        heads = array("I", (index for index in heads if labels[index] == NO_LABEL))
    has_mappings = bool(session.directory.mappings.ranges)
    has_cycles, columns = graph.has_cycles(), blocks.columns_of(heads)
    for count, (index, start, own) in enumerate(zip(heads, columns.address, columns.size)):
        if count % 1024 == 0:
            session.report_progress("examining leaked blocks", index / len(kinds))
        indirect, shown, size = graph.indirect_totals(index), index, own
        cycle = graph.cycle(index) if has_cycles and indirect.blocks else 1
        if cycle > 1 and kinds[index] == Kind.DEFINITE:
            shown = graph.representative(index)
            start, size = blocks.address(shown), blocks.size(shown)
        # The engine reads the first word only if it is complete and aligned. This must give the
        # same result.
        words = types.first_words(start, size)
        first = (words[0] if words else memory.word(start)) if size >= memory.size and start % memory.size == 0 else None
        if (marks is not None and marks[shown] & MARK) or (first is not None and range_at(ranges, first)):
            continue
        name = (types.of_words(words, start, size) if words else "") or (name_mapping(session, start) if has_mappings else "")
        hint = find_hint(session, start, size) if hints and not name else ""
        yield _Shared(Kind(kinds[index]), name, hint, size, cycle, indirect.blocks > 0), _Member(start, own, indirect)


def _leak_of(shared: _Shared, members: Sequence[_Member]) -> Leak:
    """Return a group of blocks that were examined one by one. `members`: ascending."""
    starts = [member.start for member in members]
    counts, bytes_ = zip(*(member.indirect for member in members))
    return Leak(
        kind=shared.kind,
        type=shared.name,
        hint=shared.hint,
        smallest=shared.size,
        largest=shared.size,
        cycle=shared.cycle,
        blocks=len(members),
        bytes=sum(member.bytes for member in members),
        indirect_blocks=sum(counts),
        indirect_bytes=sum(bytes_),
        least_indirect=min(counts),
        most_indirect=max(counts),
        examples=tuple(starts[:EXAMPLES]),
        samples=take_samples(starts),
        source="pattern" if shared.name else None,
    )


def _leak(group: Group, name: str, hint: str, runtime: str = "", source: Optional[TypeSource] = None, is_sure: bool = False) -> Leak:
    """Convert a group of the engine. The fields from `cycle` to `examples` are the same in both
    classes."""
    return Leak(group.kind, name, hint, group.size, group.largest, *group[3:11], runtime=runtime, source=source, is_sure=is_sure)


def merge_leaks(leaks: Iterable[Leak], by: Optional[str] = None) -> list[Leak]:
    """Merge groups; the result begins with the largest.

    `by`: None keeps groups separate that differ in kind, type, size, cycle, library's object, or in
    whether they have indirect blocks (for managed objects: only in kind or type). "type" merges
    sizes; "size" merges types; "kind" merges all groups of a kind."""
    merged: dict[tuple[object, ...], Leak] = {}
    for leak in leaks:
        key: tuple[object, ...]
        if by == "kind":
            key = (leak.kind,)
        elif by == "size":
            key = (leak.kind, leak.smallest, leak.largest)
        elif by == "type" or leak.runtime:
            key = (leak.kind, leak.type, leak.runtime)
        else:
            key = (leak.kind, leak.type, leak.smallest, leak.cycle, leak.contents, leak.most_indirect > 0)
        merged[key] = unite_leaks(merged[key], leak) if key in merged else leak
    return sorted(merged.values(), key=lambda leak: leak.weight)


def unite_leaks(a: Leak, b: Leak) -> Leak:
    """Return the union of two groups."""
    return Leak(
        kind=a.kind,
        type=a.type if a.type == b.type else "",
        hint=_merged_hint(a, b),
        smallest=min(a.smallest, b.smallest),
        largest=max(a.largest, b.largest),
        cycle=a.cycle if a.cycle == b.cycle else 0,
        blocks=a.blocks + b.blocks,
        bytes=a.bytes + b.bytes,
        indirect_blocks=a.indirect_blocks + b.indirect_blocks,
        indirect_bytes=a.indirect_bytes + b.indirect_bytes,
        least_indirect=min(a.least_indirect, b.least_indirect),
        most_indirect=max(a.most_indirect, b.most_indirect),
        examples=tuple(sorted({*a.examples, *b.examples})[:EXAMPLES]),
        runtime=a.runtime if a.runtime == b.runtime else "",
        contents=a.contents if a.contents == b.contents else "",
        samples=take_samples(sorted({*a.examples, *a.samples, *b.examples, *b.samples})),
        source=a.source if a.source == b.source else None,
        is_sure=a.is_sure and b.is_sure,
    )


def _merged_hint(a: Leak, b: Leak) -> str:
    """Return the hint of the group with the lowest example if type and size are equal. Otherwise
    return the hint if both groups have the same, else ""."""
    if (a.type, a.smallest, a.largest) == (b.type, b.smallest, b.largest):
        return min(a, b, key=lambda leak: leak.examples).hint
    return a.hint if a.hint == b.hint else ""


def name_contents(session: Session, leaks: Sequence[Leak]) -> list[Leak]:
    """Return the leaks. `contents` is set in the first NAMED of them."""
    blocks, named = session.directory.blocks, []
    for leak in leaks[:NAMED]:
        places = [(start, blocks.find(start)) for start in sorted({*leak.examples, *leak.samples})]
        samples = [(start, blocks.size(index)) for start, index in places if index >= 0]
        contents = leak.contents or ("" if leak.runtime else agree_on_contents(session, samples, leak.type, leak.hint))
        named.append(leak._replace(contents=contents))
    return [*named, *leaks[NAMED:]]


def describe_leak(leak: Leak) -> str:
    """Describe a group: "osgeo::Ellipsoid (48 B) → 3–7 blocks", "cycle of 4 (64 B)", "16–528 B,
    "GET /…""."""
    sizes = f"{number(leak.smallest)} B" if leak.smallest == leak.largest else f"{number(leak.smallest)}–{number(leak.largest)} B"
    words = f"{leak.type} ({sizes})" if leak.type else sizes
    if leak.contents:
        words += f", {leak.contents}"
    elif leak.hint:
        words += f", {leak.hint}" if leak.blocks == 1 else f", e.g. {leak.hint}"
    if leak.cycle > 1:
        words = f"cycle of {leak.cycle}: {words}"
    hanging = (leak.least_indirect, leak.most_indirect)
    if (leak.cycle <= 1 and leak.most_indirect) or leak.most_indirect > leak.cycle - 1:
        few = number(hanging[0]) if hanging[0] == hanging[1] else f"{number(hanging[0])}–{number(hanging[1])}"
        words += f" → {few} more"
    return words
