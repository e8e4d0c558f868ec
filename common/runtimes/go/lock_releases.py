"""Find out whether functions that were called may have unlocked a lock of their caller.

Direct calls are followed. An indirect call may lead to any function that is stored somewhere, and
another goroutine, to which a goroutine sends or from which it receives, may run any function. In
these cases, all functions of the program count that unlock what they have not locked themselves.
Most programs have few of them: usually, a lock is unlocked by the function that locks it, or by a
closure that this function defers.

Functions of the standard library unlock the locks of other packages only through method values
("Unlock-fm") and through interfaces (lock_interfaces.py)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.runtimes.go.code_references import can_search, find_calls, find_references
from findleaks.runtimes.go.lock_sites import DEFERRED_CALLS, LockFunction, LockPlace, LockSite, LockSites, is_unlocking
from findleaks.runtimes.go.packages import is_library
from findleaks.runtimes.go.pclntab import FunctionTable, find_function
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

# Code of x86-64: direct calls and jumps, addresses of closures, and indirect calls
_DIRECT = re.compile(rb"[\xe8\xe9](?=(.{4}))", re.DOTALL)
_LEA = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(.{4}))", re.DOTALL)
_INDIRECT = re.compile(rb"\xff[\x10-\x17\x50-\x57\x90-\x97\xd0-\xd7]")
# Functions of the runtime that let other functions of the program run
_OTHERS = re.compile(
    r"(?:runtime\.(?:newproc|chansend|chanrecv|selectgo|selectnb|closechan|reflectcall|cgocall|Gosched|mcall)|"
    r"reflect\.call$|time\.Sleep$|sync\.\(\*(?:WaitGroup|Cond)\)\.Wait$)"
)
# Functions that unlock nothing of their callers, or that lock it again
_HARMLESS = re.compile(r"runtime\.|(?:internal/)?sync\.(?:\(\*(?:RW)?Mutex\)|\(\*Cond\)|\(\*WaitGroup\)|runtime_)|internal/runtime/")
_UNLOCKING = re.compile(r"sync\.[^\0]*nlock")
_METHOD_VALUE = "lock-fm"
_REFLECTION = "reflect.Value.call"  # calls any method by its name
_MOST_CALLED, _MOST_READ = 1 << 12, 1 << 10  # functions
_LOOK = 1 << 6  # functions between two checks for Ctrl-C
_LINK = 5  # bytes of a direct call


class Calls(NamedTuple):
    """Calls of a function. `others`: whether functions may run that are not in `functions`."""

    functions: tuple[int, ...]
    others: bool


class Release(NamedTuple):
    """Whether a lock may have been unlocked, and whether `others` may have run: functions that are
    only known to be called indirectly, or by other goroutines."""

    is_possible: bool
    others: bool


class _Links(NamedTuple):
    """What the code of a function refers to. `others`: see Calls."""

    called: Sequence[int]
    closures: Sequence[int]
    others: bool
    unlocks: bool


def list_calls(function: LockFunction, places: Iterable[int], tables: Sequence[FunctionTable]) -> Calls:
    """Return the calls at some instructions of a function."""
    called, others = set[int](), False
    for place in places:
        if place in function.calls:
            called.add(function.calls[place])
        for slot, those in function.slots.items():
            if place in those:
                others |= slot != DEFERRED_CALLS
                runs_deferred = slot in (0, DEFERRED_CALLS)
                called.update(one for one, is_deferred in function.closures.items() if runs_deferred or not is_deferred)
    known = {one for one in called if _find(tables, one) is not None}
    return Calls(tuple(sorted(known)), others or known != called)


class LockReleases:
    """See the module. `tables`: those of all modules."""

    def __init__(self, target: Target, tables: Sequence[FunctionTable], sites: LockSites) -> None:
        self._target, self._tables, self._sites = target, tables, sites
        self._links: dict[int, _Links] = {}
        self._reached: dict[tuple[Calls, bool], tuple[Optional[Sequence[LockSite]], bool]] = {}
        self._foreign: dict[bool, Optional[Sequence[LockSite]]] = {}

    def may_release(self, calls: Calls, lock: LockPlace, holder: str) -> Release:
        """Whether one of these calls may have unlocked a lock that the function `holder` has
        locked. Interfaces are not considered."""
        in_library = is_library(holder)
        if (calls, in_library) not in self._reached:
            self._reached[calls, in_library] = self._follow(calls, in_library)
        unlocked, others = self._reached[calls, in_library]
        if unlocked is None or any(lock.may_be_of(one) for one in unlocked):
            return Release(True, True)
        every = self._list_foreign(in_library) if others else ()
        return Release(every is None or any(lock.may_be_of(one) for one in every), others)

    def _follow(self, calls: Calls, in_library: bool) -> tuple[Optional[Sequence[LockSite]], bool]:
        """Return the places that unlock what their function has not locked, in all functions that
        the calls lead to, and whether other functions may run. The places are None if unknown."""
        found, others, read = list[LockSite](), calls.others, 0
        seen, waiting = set[int](), list(calls.functions)
        while waiting:
            entry = waiting.pop()
            pair = find_function(self._tables, entry)
            if entry in seen or pair is None:
                continue
            seen.add(entry)
            table, function = pair
            others |= _OTHERS.match(function.name) is not None
            if _HARMLESS.match(function.name):
                continue
            links = self._read_links(table, entry)
            others |= links.others
            waiting += links.called
            waiting += links.closures
            if len(seen) > _MOST_CALLED or function.name == _REFLECTION:
                return None, True
            if is_library(function.name) and not in_library and not function.name.endswith(_METHOD_VALUE):
                continue
            if links.unlocks or any(self._unlocks(one) for one in links.closures):
                known = self._sites.read(table, entry)
                read += 1
                if known is None or read > _MOST_READ:
                    return None, True
                found += known.list_foreign()
                for one in (one for one, is_deferred in known.closures.items() if is_deferred and self._unlocks(one)):
                    seen.add(one)  # it counts as a part of this function
                    waiting += self._read_links(table, one).called
                    others |= self._read_links(table, one).others
        return found, others

    def _unlocks(self, entry: int) -> bool:
        pair = find_function(self._tables, entry)
        return pair is not None and not _HARMLESS.match(pair[1].name) and self._read_links(pair[0], entry).unlocks

    def _read_links(self, table: FunctionTable, entry: int) -> _Links:
        if entry not in self._links:
            extent = table.extent(entry)
            pieces = [(bytes(one.data), one.address) for one in self._target.pieces(*extent)]
            is_complete = sum(len(data) for data, _ in pieces) == extent.end - extent.start
            called, closures, unlocks = set[int](), set[int](), False
            others = not is_complete
            for data, start in pieces:
                ends = set[int]()
                for place, other in _list_targets(_DIRECT, data, start):
                    name = _find(self._tables, other)
                    if name is not None:
                        called.add(other)
                        unlocks |= is_unlocking(name)
                        ends.update(range(place, place + _LINK))
                for _, other in _list_targets(_LEA, data, start):
                    closure = self._sites.closure_at(table, other)
                    if _find(self._tables, closure) is not None:
                        closures.add(closure)
                others |= any(start + match.start() not in ends for match in _INDIRECT.finditer(data))
            self._links[entry] = _Links(sorted(called), sorted(closures), others, unlocks)
        return self._links[entry]

    def _list_foreign(self, in_library: bool) -> Optional[Sequence[LockSite]]:
        """Return the places of the whole program that unlock what their function has not locked;
        None if they are not known. `in_library`: of the standard library, too."""
        if in_library not in self._foreign:
            self._foreign[in_library] = self._find_foreign(in_library)
        return self._foreign[in_library]

    def _find_foreign(self, in_library: bool) -> Optional[Sequence[LockSite]]:
        if not all(can_search(self._target, table.module) for table in self._tables):
            return None
        wanted = self._list_unlocking(in_library)
        makers: dict[int, list[int]] = {}
        for table in self._tables if wanted else ():
            for closure, place in find_references(self._target, table.module, frozenset(wanted)):
                makers.setdefault(closure, []).append(table.extent(place).start)
        examined = dict[int, None]()
        # A closure that is only deferred counts as a part of the function that makes it.
        for one in wanted:
            functions = [self._read(maker) for maker in makers.get(one, ())]
            is_deferred = functions and all(each is not None and each.closures.get(one, False) for each in functions)
            examined.update(dict.fromkeys(makers[one] if is_deferred else (one,)))
        found = list[LockSite]()
        for one in interruptible(self._target, list(examined), _LOOK):
            known = self._read(one)
            if known is None or len(examined) > _MOST_READ:
                return None
            found += known.list_foreign()
        return found

    def _list_unlocking(self, in_library: bool) -> list[int]:
        """Return the functions of the program that call one that unlocks."""
        found = set[int]()
        for table in self._tables:
            unlocking = {entry for entry, name in table.entries_named(_UNLOCKING).items() if is_unlocking(name)}
            found.update(table.extent(place).start for place, _ in find_calls(self._target, table.module, unlocking, True))
        names = {one: _find(self._tables, one) or "" for one in found}
        return sorted(
            one
            for one, name in names.items()
            if name.endswith(_METHOD_VALUE) or (not _HARMLESS.match(name) and (in_library or not is_library(name)))
        )

    def _read(self, entry: int) -> Optional[LockFunction]:
        pair = find_function(self._tables, entry)
        return self._sites.read(pair[0], entry) if pair is not None else None


def _list_targets(pattern: re.Pattern[bytes], code: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield the address of each match, and the address to which the distance after it leads."""
    for match in pattern.finditer(code):
        yield start + match.start(), start + match.end() + 4 + struct.unpack("<i", match[1])[0]


def _find(tables: Sequence[FunctionTable], entry: int) -> Optional[str]:
    """Return the name of the function that begins at an address; None if none does."""
    pair = find_function(tables, entry)
    return pair[1].name if pair is not None and pair[1].entry == entry else None
