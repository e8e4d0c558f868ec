"""Compute what grew between snapshots: each figure as a series, and the rows that explain the
growth.

Figures are matched by section, containing figure, and name. The ranked rows do not overlap. They
are:

- leaked groups,
- garbage that a runtime's collector has not freed,
- what each root retains. If one part of the root (a field, a container, V8's handles, a type of a
  runtime) explains most of its growth, the row names this part. If several parts are needed to
  explain it, each has a row, and one more row has the rest. For a variable of a managed language,
  its objects in the managed heap are included,
- what each root of a managed heap retains there, and stacks of goroutines,
- shares of the resident memory other than blocks in use, without such objects.

Therefore the sum of all rows is the growth of the process if all blocks are resident. After them
follow rows of open descriptors, which are counted and have no bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Optional, Union

from findleaks.history.figure_series import LISTED_IN_PART, REST, Series, add_objects, all_series, subtract_parts, sum_series
from findleaks.history.figures import ARROW, DESCRIPTORS, MAPPINGS
from findleaks.history.snapshot import Snapshot, seconds, several_processes
from findleaks.history.survivors import Survival, survival
from findleaks.history.trend import MIN_POINTS, Rate, Trend, rate, trend
from findleaks.results.share_sort import ShareSort
from findleaks.target.kernel_references import OTHERS

MIN_BYTES, MIN_PART = 64 << 10, 0.01
"""A figure has changed if it differs by more than MIN_BYTES, and by more than the fraction MIN_PART
of its first value."""
MIN_COUNT = 16
"""Figures without bytes, such as handles and threads, have changed if they differ by this
number."""
EXPLAINS = 0.8
"""If one part of a root has at least this fraction of the root's growth, the row names the part."""
HOUR = 3600.0
WORTH = 0.2
"""If several parts explain the growth, a part has its own row if it has at least this fraction of
the growth."""
OBJECTS = 3
"""Maximum number of types that explain the growth of a row."""
CLASS_METADATA = "metaspace"
"""The part of a runtime that grows if the number of class loaders grows."""
SMALL_GROUPS = "other groups"
"""The name of the row that merges leaked groups which changed by less than MIN_BYTES each."""

RANKED = frozenset(
    {
        "lost",
        "garbage",
        "garbage type",
        "root",
        "field",
        "container",
        "counter",
        DESCRIPTORS,
        "handles",
        "heap root",
        MAPPINGS,
        "native",
        "objects",
        "runtime type",
        "share",
        "threads",
        "total",
        "user threads",
    }
)
"""Sections from which the rows are selected."""

_PARTLY_LISTED, _LISTED_SHARE = ("handle of ", "class of ", "stack of "), 50
"""How the names of some roots begin. Such a root is listed only if it retains at least
1/_LISTED_SHARE of the live objects; see runtimes/jvm/named_roots.py."""


@dataclass(frozen=True)
class Grown:
    """A series with its trend. If the times are known, it also has its rate per hour. `inside`:
    parts of the figure that grew with it, the innermost last."""

    series: Series
    trend: Trend
    per_hour: Optional[Rate]
    inside: tuple[Series, ...] = ()

    def with_objects(self, objects: Series) -> Grown:
        """Return the row of a variable, with the variable's objects in the managed heap as one of
        its parts."""
        return replace(self, inside=(objects, *self.inside))


def _below(part: Series, field: Series) -> bool:
    """Whether `part` belongs to this field: a deeper field, or the field's container."""
    return part.key[0] in LISTED_IN_PART and f"{part.key[2]}{ARROW}".startswith(f"{field.key[2]}{ARROW}")


def _is_partly_listed(root: Series, heap: Series) -> bool:
    """Return whether a root may be missing in the first or last snapshot only because it retained
    too small a part of the heap to be listed. Then its bytes there are unknown, not 0."""
    if not root.key[2].startswith(_PARTLY_LISTED):
        return False
    pairs = ((root.bytes[one] or 0, root.bytes[other] or 0, heap.bytes[one] or 0) for one, other in ((0, -1), (-1, 0)))
    return any(not here and there * _LISTED_SHARE <= whole for here, there, whole in pairs)


def _most_grown(types: Iterable[Series], whole: int) -> list[Series]:
    """Return the types that account for most of the bytes by which the whole grew."""
    grown = [one for one in types if one.delta >= max(MIN_BYTES, WORTH / 2 * whole)]
    return sorted(grown, key=lambda one: -one.delta)[:OBJECTS]


class Growth:
    """The growth from the first of two or more snapshots to the last.

    `several`: why the snapshots are not of one process; "" if they may be of one process. Snapshots
    of several processes have no rates or trends. `rows`: see the module; those that grew most come
    first, those that shrank come last. `total`: resident bytes."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = snapshots
        self.several = several_processes(snapshots)
        self.times = None if self.several else seconds(snapshots)
        self.series = all_series(snapshots, RANKED)
        totals = [one.total() for one in snapshots]
        note = totals[-1].name
        self.total = self.judge(Series(("total", "", note), [None] * len(totals), [total.bytes for total in totals], ""))
        self._objects = {key[2]: one for key, one in self.series.items() if key[0] == "objects"}
        rows = [*self._list_lost(), *self._garbage(), *self._list_held(), *self._shares()]
        self.rows = sorted([*rows, *self._descriptors()], key=lambda row: (not row.series.in_bytes, -row.series.delta))

    @cached_property
    def survival(self) -> Union[Survival, str]:
        """The blocks that were not freed, or the reason why they are unknown."""
        return survival(self.snapshots)

    def judge(self, series: Series, inside: Iterable[Series] = ()) -> Grown:
        """Return a series with its trend and rate."""
        values, in_bytes = series.values, series.in_bytes
        least = max(MIN_BYTES, MIN_PART * values[0]) if in_bytes else MIN_COUNT
        if not series.known:
            kind = Trend.TWO_POINTS
        elif len(values) < MIN_POINTS:
            kind = Trend.TWO_POINTS if abs(values[-1] - values[0]) > least else Trend.FLAT
        else:
            kind = trend(values, least)
        if self.several and kind is not Trend.FLAT:
            kind = Trend.TWO_POINTS
        slope = None
        if self.times is not None and kind is not Trend.FLAT and series.known:
            slope = rate(self.times, values)
        return Grown(series, kind, slope and Rate(*(value * HOUR for value in slope)), tuple(inside))

    def _list_lost(self) -> Iterator[Grown]:
        """Yield rows of leaked groups. A leak of blocks of many sizes has many groups, so groups
        that hardly changed are merged into one row. Possibly lost blocks are counted with their
        roots."""
        lost = [one for key, one in self.series.items() if key[0] == "lost" and key[1] == "definite"]
        small = [one for one in lost if abs(one.delta) <= MIN_BYTES]
        yield from (self.judge(one) for one in lost if abs(one.delta) > MIN_BYTES)
        if small:
            yield self.judge(sum_series(("lost", "definite", SMALL_GROUPS), small))

    def _garbage(self) -> Iterator[Grown]:
        """Yield rows of garbage that collectors have not freed, with the types that grew."""
        for key, one in self.series.items():
            if key[0] == "garbage":
                types = [part for of, part in self.series.items() if of[:2] == ("garbage type", key[2])]
                yield self.judge(one, _most_grown(types, one.delta))

    def _shares(self) -> Iterator[Grown]:
        """Yield rows of the shares of resident memory. Blocks in use and leaked mappings are left
        out, because `_list_lost` and `_list_held` include them."""
        for key, one in self.series.items():
            if key[0] == "share" and not key[2].endswith(": in-use") and key[2] != ShareSort.LEAKED_MAPPINGS:
                parts = self._parts_of_heap(one)
                yield from map(self.judge, parts)
                objects = [*self._objects_in(one), *(part._replace(counts=[0] * len(part.counts)) for part in parts)]
                rest = subtract_parts(one, objects) if objects else one
                if parts:  # parts of objects may not be resident
                    rest = rest._replace(bytes=[value if value is None else max(value, 0) for value in rest.bytes])
                explained = rest.delta < (1 - EXPLAINS) * one.delta
                yield self.judge(rest, () if explained else self._causes(key[2], one))

    def _causes(self, name: str, share: Series) -> list[Series]:
        """Return what explains the growth of a share: call stacks of threads, kinds of mappings,
        class loaders, or types of objects."""
        if name == ShareSort.STACKS or " stacks of " in name:
            return self._threads()
        if kinds := [one for key, one in self.series.items() if key[:2] == (MAPPINGS, name)]:
            return _most_grown(kinds, share.delta)
        if name.endswith(f" {CLASS_METADATA}: {ShareSort.RUNTIME}"):
            runtime = name.partition(" ")[0]
            counters = [self.series.get(("counter", runtime, counter)) for counter in ("class loaders", "classes")]
            return [one for one in counters if one is not None and one.delta >= MIN_COUNT]
        # Objects are in the heap, so they do not explain the growth of metadata.
        return [] if name.endswith(f" metadata: {ShareSort.RUNTIME}") else self._types(share)

    def _objects_in(self, heap: Series) -> list[Series]:
        """Return the objects of variables that are in this managed heap. The rows of these
        variables contain the objects."""
        if not heap.key[2].endswith(": runtime"):
            return []
        return [one._replace(counts=[0] * len(one.counts)) for one in self._objects.values() if heap.key[2].startswith(f"{one.key[1]} ")]

    def _descriptors(self) -> Iterator[Grown]:
        """Yield rows of open descriptors whose number changed by MIN_COUNT or more. Yields none if
        a snapshot has no data about descriptors."""
        for key, one in self.series.items():
            if key[0] == DESCRIPTORS and key[2] != OTHERS and one.known and max(one.values) - min(one.values) >= MIN_COUNT:
                yield self.judge(one)

    def _parts_of_heap(self, heap: Series) -> list[Series]:
        """Return what explains the growth of this managed heap: what its roots retain in it, and
        stacks of threads that the runtime schedules itself. Each has its own row."""
        of = heap.key[2].partition(" ")[0]
        parts = [one for key, one in self.series.items() if key[0] in ("heap root", "user threads") and key[1] == of]
        parts = [one for one in parts if not _is_partly_listed(one, heap)]
        grown = [one for one in parts if abs(one.delta) >= max(MIN_BYTES, WORTH / 2 * abs(heap.delta))]
        return grown if heap.key[2].endswith(f" heap: {ShareSort.RUNTIME}") else []

    def _threads(self) -> list[Series]:
        """Return the call stack that has most of the new threads."""
        stacks = [one for key, one in self.series.items() if key[0] == "threads" and one.delta >= MIN_COUNT]
        return sorted(stacks, key=lambda one: one.delta)[-1:]

    def _types(self, heap: Series) -> list[Series]:
        """Return the types of objects that explain the growth of a runtime's heap."""
        of = heap.key[2].partition(" ")[0]
        return _most_grown([one for key, one in self.series.items() if key[0] == "runtime type" and key[1] == of], heap.delta)

    def _list_held(self) -> Iterator[Grown]:
        """Yield rows of roots. A row names the part that explains it, or is divided into its
        parts."""
        parts: dict[str, list[Series]] = {}
        for key, one in self.series.items():
            if key[0] in ("field", "container", "native"):
                parts.setdefault(key[1], []).append(one)
        roots = [one for key, one in self.series.items() if key[0] == "root"]
        handles = self._holders_of_handles(roots)
        for root in roots:
            runtime = root.key[2].partition("'s ")[0].rpartition(" ")[2]
            # If variables retain native memory of a type, this memory does not count for this root.
            native = (one for one in parts.get(runtime, ()) if one.key[0] == "native" and EXPLAINS * one.delta <= max(root.delta, 0))
            inside = list(native) or parts.get(root.key[2], [])
            objects = self._objects.get(root.key[2])
            if objects is not None:
                root, inside = add_objects(root, objects), [add_objects(one, objects) for one in inside]
            for row in self._divide(root, [*inside, *handles.get(root.key[2], ())]):
                yield row if objects is None or row.series.note == REST or row.series.key[0] != "root" else row.with_objects(objects)

    def _holders_of_handles(self, roots: Sequence[Series]) -> dict[str, list[Series]]:
        """Return V8's handles that grew, by the name of a root that grew with them. No command
        reports what retains handles, so the root with the largest growth is chosen."""
        found: dict[str, list[Series]] = {}
        for key, one in self.series.items():
            if key[0] == "handles" and one.delta > MIN_BYTES:
                root = max(roots, key=lambda root: root.delta, default=None)
                if root is not None and root.delta >= EXPLAINS * one.delta:
                    found.setdefault(root.key[2], []).append(one)
        return found

    def _divide(self, root: Series, parts: Sequence[Series]) -> Iterator[Grown]:
        """Yield one row for the root if some parts explain its growth. Otherwise yield a row for
        each part that is large enough, and a row for the rest of the root."""
        if explaining := list(self._explaining(root, parts)):
            yield self.judge(root, [*explaining, *self._objects_of(explaining[-1])])
            return
        outer = [one for one in parts if one.key[0] in ("handles", "native") or (one.key[0] == "field" and ARROW not in one.key[2])]
        if handles := [one for one in outer if one.key[0] == "handles"]:
            outer = handles  # The blocks of handles are retained by a field, too.
        least = max(MIN_BYTES, WORTH * root.delta)
        several = [one for one in outer if one.known and one.delta >= least]
        for one in several:
            below = [part for part in parts if part is not one and _below(part, one)]
            yield self.judge(one, [*self._explaining(one, below), *self._objects_of(one)])
        yield self.judge(subtract_parts(root, several) if several else root)

    def _explaining(self, whole: Series, parts: Iterable[Series]) -> Iterator[Series]:
        """Yield the parts that explain the growth of the whole, outer parts first. If a part was
        not listed in the first snapshot, it was at most as large as the whole."""
        if whole.delta > MIN_BYTES:
            for one in parts:
                if one.bytes[-1] is not None:
                    first = one.bytes[0] if one.bytes[0] is not None else whole.bytes[0] or 0
                    if EXPLAINS * whole.delta <= one.bytes[-1] - first <= whole.delta / EXPLAINS:
                        yield one

    def _objects_of(self, native: Series) -> list[Series]:
        """Return the objects that this native memory belongs to."""
        section, within, name = native.key
        objects = self.series.get(("runtime type", within, name)) if section == "native" else None
        return [objects] if objects is not None else []

    def objects(self) -> Iterator[tuple[str, list[Series]]]:
        """Yield the types of objects that grew in bytes, by runtime; those that grew most come
        first. Small growth is left out."""
        types: dict[str, list[Series]] = {}
        for key, one in self.series.items():
            if key[0] == "runtime type" and one.delta > MIN_BYTES:
                types.setdefault(key[1], []).append(one)
        for runtime, grown in types.items():
            yield runtime, sorted(grown, key=lambda one: -one.delta)
