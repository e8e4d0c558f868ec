"""Find out which locks a function of Go holds at a pc. Only machine code of x86-64 is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.runtimes.go.lock_releases import LockReleases, Release, list_calls
from findleaks.runtimes.go.lock_sites import NAMES, LockFunction, LockPlace, LockSite, LockSites, find_line
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.base import Target

_UNKNOWN = Release(True, True)


class HeldLocks:
    """The locks that functions hold. `tables`: those of all modules. A `pc` is an address in the
    current call of a function."""

    def __init__(self, target: Target, tables: Sequence[FunctionTable]) -> None:
        self._sites = LockSites(target)
        self._releases, self._tables = LockReleases(target, tables, self._sites), tables
        self._held: dict[tuple[int, bool], Sequence[LockSite]] = {}
        self._called: dict[tuple[int, LockSite, LockPlace], Release] = {}
        self._released: dict[tuple[int, LockPlace, str], Release] = {}

    def list_held(self, table: FunctionTable, pc: int, is_locking: bool) -> Sequence[LockSite]:
        """Return the places at which a function has taken the locks that it holds at `pc`: each
        path to `pc` leads through the place, no path from an unlock leads to `pc` without it, and a
        path leads from `pc` to an unlock. A lock is left out if this is not certain.
        `is_locking`: whether the function locks there; this lock is not held."""
        key = pc, is_locking
        if key not in self._held:
            self._held[key] = self._list_held(table, pc, is_locking)
        return self._held[key]

    def _list_held(self, table: FunctionTable, pc: int, is_locking: bool) -> Sequence[LockSite]:
        known = self._read(table, pc, True)
        if known is None or not known.locks:
            return ()
        places = table.places(pc)
        is_locking = is_locking or any(one.function.startswith(NAMES) for one in places[:1])
        call, line = known.find_call(pc), find_line(table, pc) if is_locking else 0
        return [one for one in known.locks if one.line != line and known.holds(one, call)]

    def may_have_called(self, table: FunctionTable, pc: int, site: LockSite, lock: LockPlace) -> Release:
        """Whether the function that has locked `lock` at `site` may have called one, before `pc`,
        that has unlocked it."""
        key = pc, site, lock
        if key not in self._called:
            known = self._read(table, pc, False)
            places = known.list_between(site.pc, known.find_call(pc), (site.pc,)) if known is not None else set[int]()
            self._called[key] = self._may_release(known, places, lock, table) if known is not None else _UNKNOWN
        return self._called[key]

    def may_have_released(self, table: FunctionTable, pc: int, lock: LockPlace, holder: str) -> Release:
        """Whether a function may have unlocked, before `pc`, what its caller `holder` has
        locked."""
        key = pc, lock, holder
        if key not in self._released:
            known = self._read(table, pc, False)
            self._released[key] = self._may_have_released(known, pc, lock, table, holder) if known is not None else _UNKNOWN
        return self._released[key]

    def _may_have_released(self, known: LockFunction, pc: int, lock: LockPlace, table: FunctionTable, holder: str) -> Release:
        call = known.find_call(pc)
        if known.releases_locker(call):
            return _UNKNOWN
        if any(lock.may_be_of(one) and known.reaches([one.pc], call) for one in known.list_foreign()):
            return _UNKNOWN
        return self._may_release(known, {known.entry, *known.list_between(known.entry, call)}, lock, table, holder)

    def _may_release(self, known: LockFunction, places: set[int], lock: LockPlace, table: FunctionTable, holder: str = "") -> Release:
        name = holder or getattr(table.find(known.entry), "name", "")
        return self._releases.may_release(list_calls(known, places, self._tables), lock, name)

    def _read(self, table: FunctionTable, pc: int, only_locking: bool) -> Optional[LockFunction]:
        """Read the function at `pc`. `only_locking`: return None if it does not lock."""
        function = table.find(pc)
        if function is None or (only_locking and not self._sites.has_locks(table, function.entry)):
            return None
        return self._sites.read(table, function.entry)
