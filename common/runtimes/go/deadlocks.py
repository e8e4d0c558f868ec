"""Find out which goroutines hold the locks for which others wait, and which wait for each other.

A sync.Mutex does not record its owner. A goroutine holds a lock if one of its functions has locked
it and not unlocked it yet (lock_sites.py), and refers to it: by a pointer on the stack, or because
the lock is a variable. The holder is known if this is true for exactly one goroutine. If each of
several goroutines holds the lock for which the next one waits, they are deadlocked.

A sync.Once has a mutex, which it locks while it calls its function. The frame of doSlow, which
calls the function, contains the address of the sync.Once, or of the mutex.

Source: Go 1.18 to 1.27, src/sync/mutex.go (state, sema), rwmutex.go (w, writerSem, readerSem),
once.go (done, m; doSlow)."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.formatting import number, shorten
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.goroutines import RUNNING, CallFrame, Goroutines
from findleaks.runtimes.go.held_locks import HeldLocks
from findleaks.runtimes.go.lock_interfaces import LockInterfaces
from findleaks.runtimes.go.lock_sites import DEFERRED, MOST_READERS, NAMES, READERS, LockPlace, LockSite
from findleaks.runtimes.go.lock_variables import is_alone
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.objects import UNTYPED, HeapObjects
from findleaks.runtimes.go.packages import find_own_frame
from findleaks.runtimes.go.waits import Wait
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, SourcePlace, Target
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.interruptible import interruptible
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

REMEDY = "lock mutexes in the same order everywhere, and do not lock a mutex again that the goroutine already holds"

_SEMAPHORES = (
    (re.compile(r"sync\.\(\*RWMutex\)\.RLock$"), 12),
    (re.compile(r"sync\.\(\*RWMutex\)\.Lock$"), 8),
    (re.compile(r"sync\.\(\*Mutex\)\.(?:L|l)ock(?:Slow)?$"), 4),
)
"""Methods that wait, and the offset of the semaphore from the start of the lock."""
_STATE = re.compile(r"(?:\.w)?(?:\.mu)?\.state$")
_SHARED = re.compile(r"sync\.\(\*RWMutex\)\.R?Lock$")
# Since Go 1.24, this package has the fields of a mutex, and sync.Mutex has it in the field `mu`.
_INNER = "internal/sync.(*Mutex).lockSlow"
_MOST_GOROUTINES, _MOST_FRAMES, _MOST_CYCLE = 1 << 14, 64, 64
_MOST_COUNT = 1 << 16  # readers of a lock
_TINY = 16  # bytes of the blocks of Go's tiny allocator
_PANICKING = ("runtime.gopanic", "runtime.Goexit")
_UNLOCKING = ("sync.(*Cond).Wait", *_PANICKING, DEFERRED)
"""Functions that unlock what their callers have locked, or that run deferred calls, which may."""
ONCE = "sync.Once.Do"
"""The reason of the wait of a goroutine that waits for the function of a sync.Once."""
ONCE_REMEDY = "do not call Do of a sync.Once in its own function, and do not wait there for code that calls it"
# The frame of doSlow is on the stack while the function runs. `m` is at this offset.
_DO_SLOW, _ONCE_MUTEX = "sync.(*Once).doSlow", 4
_MUTEX = re.compile(r"(?:internal/)?sync\.(?:\(\*Mutex\)\.|runtime_Semacquire)")
_LOOK = 256  # goroutines between two checks for Ctrl-C


class LockHolder(NamedTuple):
    """The lock for which a goroutine waits, its name ("main.Account.mu"; "" if unknown), and the
    number of the goroutine that holds it, None if it is not known. `cycle`: the goroutines that
    wait for each other, from the holder on; () if the wait does not lead to a deadlock. `place`:
    where the holder locked it. `is_once`: whether it is the mutex of a sync.Once."""

    lock: int
    name: str
    holder: Optional[int]
    cycle: Sequence[int]
    place: str
    is_once: bool


def find_lock_holders(
    target: Target,
    engine: Engine,
    waits: Mapping[int, Wait],
    threads: Sequence[UserThread],
    objects: HeapObjects,
    goroutines: Goroutines,
    graph: GoGraph,
) -> dict[int, LockHolder]:
    """Return who holds the locks for which goroutines wait, by number of the waiting goroutine.
    `waits`: see WaitReader. Raises Interrupted."""
    wanted = dict(_list_locks(waits, threads))
    if not wanted or len(threads) > _MOST_GOROUTINES:
        return {}
    holders: dict[int, dict[int, str]] = {}
    finder = _Finder(target, engine, frozenset(wanted.values()), objects, goroutines, graph)
    once = {wanted[one.number] for one in threads if one.number in wanted and waits_for_once(one.frames)}
    for one in interruptible(target, [one for one in threads if not one.is_internal], _LOOK):
        for lock, place in chain(finder.find_held(one, wanted.get(one.number, 0)), finder.find_once(one, once) if once else ()):
            holders.setdefault(lock, {})[one.number] = place
    places = {lock: next(iter(those.items())) for lock, those in holders.items() if len(those) == 1}
    known = {lock: holder for lock, (holder, _) in places.items()}
    shared = {wanted[one.number] for one in threads if one.number in wanted and any(_SHARED.search(frame.function) for frame in one.frames)}
    inner = ".mu" if any(one.code_of(_INNER) is not None for one in goroutines.tables) else ""
    ends = {lock: (".m" if lock in once else ".w" if lock in shared else "") + f"{inner}.state" for lock in wanted.values()}
    names = {lock: _name(graph, lock, end, lock in once) for lock, end in ends.items()}
    return {
        waiter: LockHolder(lock, names[lock], known.get(lock), _cycle(wanted, known, lock), places.get(lock, (0, ""))[1], lock in once)
        for waiter, lock in wanted.items()
    }


def waits_for_lock(one: UserThread) -> bool:
    """Whether a goroutine waits for a lock."""
    return one.state == "waiting" and any(method.search(frame.function) for frame in one.frames for method, _ in _SEMAPHORES)


def waits_for_once(frames: Iterable[NamedFrame]) -> bool:
    """Whether these frames, innermost first, wait for the mutex of a sync.Once. The call of Lock in
    doSlow is inlined. If Lock is not inlined in doSlow, it may be the function of the sync.Once, as
    in once.Do(mu.Lock): the wrapper for this method value is not among the frames."""
    outside = [one for one in frames if not one.function.startswith("runtime.")]
    at = next((at for at, one in enumerate(outside) if not _MUTEX.match(one.function)), 0)
    return at > 0 and outside[at].function == _DO_SLOW and outside[at - 1].address == outside[at].address


def _list_locks(waits: Mapping[int, Wait], threads: Iterable[UserThread]) -> Iterator[tuple[int, int]]:
    """Yield the number of each goroutine that waits for a lock, and the address of the lock."""
    for one in threads:
        objects = set(waits[one.number].objects) if one.number in waits else set[int]()
        offsets = (offset for frame in one.frames for method, offset in _SEMAPHORES if method.search(frame.function))
        offset = next(offsets, 0)
        if len(objects) == 1 and offset:
            yield one.number, objects.pop() - offset


def _cycle(wanted: Mapping[int, int], known: Mapping[int, int], lock: int) -> Sequence[int]:
    """Return the goroutines that wait for each other and that a wait for `lock` leads to."""
    seen: list[int] = []
    holder = known.get(lock)
    while holder is not None and holder not in seen and len(seen) < _MOST_CYCLE:
        seen.append(holder)
        holder = known.get(wanted.get(holder, 0))
    return seen[seen.index(holder) :] if holder in seen else ()


def _name(graph: GoGraph, lock: int, end: str, is_once: bool) -> str:
    """Return the type and the field of a lock or sync.Once, or the variable that it is. `end`: the
    names of the fields from there to the state of the mutex."""
    found = graph.find(lock)
    if found is None:
        return graph.names.name(lock - _ONCE_MUTEX if is_once else lock)
    if graph.type_of(found.block) == UNTYPED:
        return ""
    field = graph.name_member(found.block, lock - graph.extent(found.block)[0])
    return f"{shorten(graph.type_of(found.block))}{field[: -len(end)] if field.endswith(end) else field}"


class _Finder:
    """Finds the locks that goroutines hold. `wanted`: the locks for which goroutines wait."""

    def __init__(
        self, target: Target, engine: Engine, wanted: frozenset[int], objects: HeapObjects, goroutines: Goroutines, graph: GoGraph
    ) -> None:
        self._memory, self._wanted, self._graph = Memory(target), wanted, graph
        self._stacks, self._goroutines, self._locks = objects.stacks, goroutines, HeldLocks(target, goroutines.tables)
        self._interfaces = LockInterfaces(target, engine, goroutines.tables, objects.persistent, objects.values)
        self._is_alone = lru_cache(None)(partial(is_alone, target, engine, goroutines.tables))

    def find_held(self, one: UserThread, own: int) -> Iterator[tuple[int, str]]:
        """Yield the locks that a goroutine holds, and where it locked them. `own`: the lock for
        which it waits, or 0."""
        frames = list(self._list_frames(one))
        sites = [(at, site) for at, (frame, locks) in enumerate(frames) for site in self._list_sites(one, frame, locks)]
        has_fields = any(not site.address for _, site in sites)
        pointers = self._stacks.words_of_program(one) if has_fields else set()
        for at, site in sites:
            lock = self._find_lock(site, pointers, own, one.stack)
            if lock and self._is_locked(lock, site) and not self._is_released(lock, site, [frame for frame, _ in frames[: at + 1]]):
                yield lock, self._describe_place(frames[at][0], site.pc)

    def find_once(self, one: UserThread, once: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield the mutexes of each sync.Once whose function a goroutine executes, and where it
        called Do. `once`: the mutexes for which goroutines wait."""
        inner, lock = "", 0
        for frame in self._goroutines.walk(one.pc, one.sp, one.stack, most=_MOST_FRAMES):
            name = frame.function.name
            if name in _PANICKING:  # deferred calls may have unlocked
                return
            if name == _DO_SLOW:
                lock = self._find_once(frame, once) if inner and not _MUTEX.match(inner) else 0
            elif lock and not name.startswith(NAMES):
                yield lock, self._describe_place(frame, frame.pc - frame.called)
                lock = 0
            inner = inner if name.startswith("runtime.") else name

    def _find_once(self, frame: CallFrame, once: Collection[int]) -> int:
        """Return the mutex that doSlow has locked; 0 if it is not certain. `frame`: of doSlow."""
        words = self._memory.words(frame.sp, (frame.end - frame.sp) // 8) or ()
        found = {one for word in words for one in (word, word + _ONCE_MUTEX) if one in once}
        return found.pop() if len(found) == 1 else 0

    def _list_frames(self, one: UserThread) -> Iterator[tuple[CallFrame, bool]]:
        """Yield frames, innermost first, and whether each calls a function of the package sync.
        Stop at a function that may have unlocked what its callers have locked."""
        is_locking = False
        for frame in self._goroutines.walk(one.pc, one.sp, one.stack, most=_MOST_FRAMES):
            name = frame.function.name
            if name in _UNLOCKING:
                return
            if name.startswith(NAMES):
                is_locking = True
            elif not name.startswith("runtime."):
                yield frame, is_locking
                is_locking = False

    @staticmethod
    def _describe_place(frame: CallFrame, pc: int) -> str:
        place = frame.table.places(pc)[-1]
        return f"{place.function} ({SourcePlace(place.function, place.file, place.line).short()})"

    def _list_sites(self, one: UserThread, frame: CallFrame, is_locking: bool) -> Sequence[LockSite]:
        if not frame.called and one.state == RUNNING:
            return ()
        return self._locks.list_held(frame.table, frame.pc - frame.called, is_locking)

    def _find_lock(self, site: LockSite, pointers: Collection[int], own: int, stack: Range) -> int:
        """Return the lock that a place has locked, if a goroutine waits for it; 0 if several locks
        are possible. If a goroutine waits for a lock, and refers to another one that is locked, it
        has locked the latter. `stack`: the goroutine's stack."""
        if site.address:
            return site.address if site.address in self._wanted else 0
        places = {word + site.offset for word in pointers if not site.offset or self._is_inside(word, site.offset)}
        found = places & self._wanted
        if not found:
            return 0
        others = {one for one in places if one != own and self._is_locked(one, site) and (one in found or self._is_lock(one, site, stack))}
        only = others or found & {own}
        return next(iter(only & found), 0) if len(only) == 1 else 0

    def _is_inside(self, pointer: int, offset: int) -> bool:
        """Whether the memory at an offset from a pointer may be in the object that it refers to."""
        found = self._graph.blocks.lookup(pointer)
        return found is None or pointer + offset < found[1] + found[2]

    def _is_lock(self, address: int, site: LockSite, stack: Range) -> bool:
        """Whether memory that looks locked may be a lock: according to the number of goroutines
        that wait for it, and the type of the object that contains it."""
        if not site.is_shared:
            state, semaphore = struct.unpack("<II", self._memory.read(address, 8) or bytes(8))
            # Other goroutines do not wait for a lock on the stack of this one.
            most = 1 if stack.start <= address < stack.end else _MOST_GOROUTINES << 3
            if state > most or semaphore > _MOST_GOROUTINES or (most == 1 and semaphore):
                return False
        found = self._graph.find(address)
        # Go puts several small values without pointers into one block, which has the type of one.
        if found is None or (found.size <= _TINY and site.offset < 8) or self._graph.type_of(found.block) == UNTYPED:
            return True
        return _STATE.search(self._graph.name_member(found.block, address - self._graph.extent(found.block)[0])) is not None

    def _is_released(self, lock: int, site: LockSite, frames: Sequence[CallFrame]) -> bool:
        """Whether functions that were called after a lock was taken may have unlocked it. The last
        one of `frames` has taken it."""
        *inner, holder = frames
        place = self._describe(lock, site)
        found = [self._locks.may_have_called(holder.table, holder.pc - holder.called, site, place)]
        found += (self._locks.may_have_released(one.table, one.pc - one.called, place, holder.function.name) for one in inner)
        if any(one.is_possible for one in found):
            return True
        return any(one.others for one in found) and self._interfaces.may_unlock(lock)

    def _describe(self, lock: int, site: LockSite) -> LockPlace:
        found = self._graph.find(lock)
        if found is None:
            return LockPlace(lock, (0,) if self._is_alone(lock) else None, site.is_shared, site.is_read)
        offset = lock - self._graph.extent(found.block)[0]
        starts = self._graph.list_starts(found.block, offset)
        distances = tuple(sorted({offset - one for one in starts})) if starts is not None else None
        return LockPlace(0, distances, site.is_shared, site.is_read)

    def _is_locked(self, lock: int, site: LockSite) -> bool:
        """Whether the memory at an address may be a lock that is locked."""
        data = self._memory.read(lock + (READERS if site.is_shared else 0), 4)
        state = decode_signed(int.from_bytes(data, "little"), 32) if data else 0
        if not site.is_shared:
            return bool(state & 1)
        return 0 <= state + MOST_READERS < _MOST_COUNT or (site.is_read and 0 < state < _MOST_COUNT)


def describe_holders(
    threads: Sequence[UserThread], holders: Mapping[int, LockHolder], every: Mapping[int, UserThread], machine: str
) -> tuple[str, int]:
    """Return sentences about the locks for which a group of goroutines waits, and how many of the
    goroutines are deadlocked. `every`: all goroutines by number. `machine`: name of the
    architecture."""
    waits = [holders[one.number] for one in threads if one.number in holders]
    locks = {one.lock for one in waits}
    if not locks:
        return "", 0
    deadlocked = [one for one in waits if one.cycle]
    example = next(iter(deadlocked), next((one for one in waits if one.holder is not None), waits[0]))
    address = example.lock - _ONCE_MUTEX if example.is_once else example.lock
    names = sorted({one.name for one in waits if one.name})
    named = f" {shorten(names[0])}" if len(names) == 1 and names[0] != "sync.Once" else ""
    singular, plural = ("sync.Once", "values of sync.Once") if all(one.is_once for one in waits) else ("lock", "locks")
    if len(locks) == 1:
        where = "" if "0x" in named else f" at {address:#x}"
        text = f"They wait for the {singular}{named}{where}."
    else:
        text = f"They wait for {number(len(locks))} {plural}{':' if named else ''}{named}."
    if example.holder is None:
        if machine != X86_64.name and not example.is_once:
            text += f" findleaks does not read which goroutine holds a lock on {machine}, and finds no deadlocks there."
        return text, 0
    which = f"the one at {address:#x}" if len(locks) > 1 else "it"
    done = f"called Do of {which}" if example.is_once else f"locked {which}"
    text += f" Goroutine {example.holder} {done} in {shorten(example.place)}, and is in "
    text += f"{_describe_place(every[example.holder])}."
    if example.cycle == [example.holder] and example.is_once:
        text += " Deadlock: the function of the sync.Once waits for its own end."
    elif example.cycle == [example.holder]:
        text += " Deadlock: this goroutine waits for the lock that it holds itself."
    elif example.cycle:
        first, *rest = example.cycle
        chain = ", which waits for ".join(f"a lock of goroutine {other}" for other in (*rest, first))
        text += f" Deadlock: goroutine {first} waits for {chain}."
    return text, len(deadlocked)


def _describe_place(one: UserThread) -> str:
    frame = find_own_frame(one.frames)
    place = f"{shorten(frame.short_name())} ({shorten(frame.place())})" if frame is not None else "unknown code"
    return f"{place}: {ONCE if waits_for_once(one.frames) else one.reason or one.state}"
