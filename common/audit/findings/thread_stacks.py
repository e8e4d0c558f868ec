"""Report stacks of threads that take much memory, and what most of these threads wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Optional

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.deep_stack import find_deep_stack
from findleaks.audit.findings.large_shares import private_bytes
from findleaks.audit.findings.significance import PART, is_large
from findleaks.formatting import number, printable, shorten, size
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.directory import find_frames
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.ranges import region_at
from findleaks.unwind.frame_locks import LOCK, PARK, RELOCK, WAIT, FrameLock, describe_thread
from findleaks.unwind.managed_frames import ManagedFrames
from findleaks.unwind.stacks import NamedFrame, Stack, group_threads
from findleaks.value_classes import NamedTuple

_MANY = 32  # minimum number of threads in a finding if residency is unknown
LEAST_NOTED = 1 << 20  # fewest bytes of stacks that a sentence without a finding describes
_WAITS = (LOCK, RELOCK, WAIT, PARK)


class _Group(NamedTuple):
    """Threads in one function of the program, grouped by call stack. `place`: the name of the
    function, or "" if it is unknown."""

    place: str
    stacks: Sequence[Stack]

    @property
    def threads(self) -> int:
        """The number of threads."""
        return sum(len(stack.threads) for stack in self.stacks)


class _Wait(NamedTuple):
    """A lock, and the number of threads of a group that wait for it. `owner`: the kernel's number
    of the thread that holds the lock, 0 if it is unknown. `name`: the variable that refers to the
    locked object, or "" if none is known."""

    lock: FrameLock
    threads: int
    owner: int
    name: str


def find_thread_stacks(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if stacks of running threads are at least a tenth of the private memory:
    about one thread (deep_stack.py) if its stack is most of this memory, else about all threads."""
    shares = [one for one in accounting.shares if one.are_stacks]
    threads, total = max((one.count for one in shares), default=0), sum(one.bytes for one in shares)
    if not is_large(total, private_bytes(accounting)):
        return
    deep = find_deep_stack(session, accounting, total)
    if deep is not None:
        yield deep
        return
    if threads < 2:
        return
    percent = 100 * total // max(private_bytes(accounting), 1)
    if accounting.known:
        title = f"{number(threads)} threads run: their stacks take {size(total)}, {percent} % of the private memory."
    elif threads >= _MANY:
        title = f"{number(threads)} threads run: {size(total)} are mapped for their stacks, of which most may be untouched."
    else:
        return
    readers = find_frames(session.target)
    group = _find_largest_group(group_threads(session.target, readers=readers), readers)
    wait = _find_wait(session, group)
    names = _thread_names(session, readers)
    facts: dict[str, object] = {
        "threads": threads,
        "same_stack": len(group.stacks[0].threads) if group.stacks else None,
        "same_place": group.threads,
        "place": group.place or None,
        "lock": _lock_facts(wait, names) if wait is not None else None,
    }
    cause = f"{_describe_group(group)} {_describe_wait(wait, names) if wait is not None else ''}".strip()
    remedies = _find_idle_remedies(group, readers) if wait is None else ()
    # If residency is unknown, the finding is ranked by the bytes that are certainly in use.
    touched = total if accounting.known else min(_used_bytes(session), total)
    resident, lock = total if accounting.known else None, wait.lock.address if wait is not None else 0
    yield Finding("thread-stacks", touched, title, cause, remedies, ("stacks",), facts, resident, lock=lock)


def has_unexplained_stacks(accounting: Accounting, found: Sequence[Finding]) -> bool:
    """Whether stacks of running threads are a tenth of the private memory, and no finding is about
    them."""
    stacks = [one for one in accounting.shares if one.sort == ShareSort.STACKS] if accounting.known else []
    is_explained = any(one.kind in ("thread-stacks", "deep-stack", "unread-memory") for one in found)
    return not is_explained and sum(one.bytes for one in stacks) >= max(LEAST_NOTED, PART * private_bytes(accounting))


def describe_threads(session: Session, threads: int) -> str:
    """Return where most of the threads are, for a sentence without a finding; "" if there are few
    threads, or if fewer than half of them have the same stack."""
    readers = find_frames(session.target) if threads >= _MANY else ()
    group = _find_largest_group(group_threads(session.target, readers=readers), readers) if threads >= _MANY else _Group("", ())
    if not group.place or 2 * group.threads < threads:
        return ""
    same = "have the same stack, in" if len(group.stacks) == 1 else "are in"
    return f"{number(group.threads)} of {number(threads)} {same} {group.place}"


def _find_idle_remedies(group: _Group, readers: Sequence[ManagedFrames]) -> tuple[str, ...]:
    """Return how to end the threads of a group that wait for tasks; () if they do not, or if there
    is only one thread."""
    found = (reader.idle_remedies(stack.frames) for stack in group.stacks[:1] for reader in readers)
    return tuple(next(filter(None, found), ())) if group.threads > 1 else ()


def _used_bytes(session: Session) -> int:
    """Return the bytes that are in use on all stacks: from the stack pointer to the end."""
    regions = session.target.regions()
    found = ((region_at(regions, thread.sp), thread.sp) for thread in session.target.threads())
    return sum(region.end - sp for region, sp in found if region is not None)


def _find_largest_group(stacks: Sequence[Stack], readers: Sequence[ManagedFrames]) -> _Group:
    """Return the largest group of threads. Threads in the same managed function form a group, even
    if their stacks differ. Other threads are grouped by stack."""
    groups: dict[str, list[Stack]] = {}
    by_kind = {reader.kind: reader for reader in readers}
    for at, stack in enumerate(stacks):
        frame = _own_frame(stack.frames, by_kind)
        name = frame.short_name() if frame is not None else ""
        groups.setdefault(name if frame is not None and frame.kind else f"{at} {name}", []).append(stack)
    found = max((_Group("", some) for some in groups.values()), key=lambda one: one.threads, default=_Group("", ()))
    frame = _own_frame(found.stacks[0].frames, by_kind) if found.stacks else None
    return found._replace(place=shorten(frame.short_name(), 200) if frame is not None else "")


def _own_frame(frames: Sequence[NamedFrame], readers: Mapping[str, ManagedFrames]) -> Optional[NamedFrame]:
    """Return the innermost frame of the program's own code. Frames of managed functions are
    preferred. `readers`: the reader for each kind of managed frame."""
    from findleaks.audit.crash import own_frame  # imported late: seldom needed

    managed = [(one, readers.get(one.kind)) for one in frames if one.kind]
    own = (one for one, reader in managed if reader is None or not reader.is_of_library(one))
    others = (one for one, reader in managed if reader is None or not reader.is_of_wait(one))
    return next(chain(own, others, (one for one, _ in managed)), None) or own_frame(frames)


def _describe_group(group: _Group) -> str:
    same = len(group.stacks[0].threads) if group.stacks else 0
    if not group.place or group.threads < 2:
        return ""
    if same == group.threads:
        return f"{number(same)} of them have the same stack, in {group.place}."
    return f"{number(group.threads)} of them are in {group.place}{f', {number(same)} of these with the same stack' if same > 1 else ''}."


def _find_wait(session: Session, group: _Group) -> Optional[_Wait]:
    """Return the lock for which at least half of the threads of a group wait; None if there is
    none."""
    each = [locks for stack in group.stacks for locks in stack.locks]
    innermost = [next((one.lock for one in locks if one.lock.kind in _WAITS and one.lock.address), None) for locks in each]
    waits = [lock for lock in innermost if lock is not None]
    address, count = next(iter(Counter(lock.address for lock in waits).most_common(1)), (0, 0))
    if count < 2 or 2 * count < group.threads:
        return None
    waits = [lock for lock in waits if lock.address == address]
    owners = Counter(lock.owner for lock in waits if lock.owner).most_common(1)
    return _Wait(waits[0], count, owners[0][0] if owners else 0, _name_variable(session, address))


def _name_variable(session: Session, address: int) -> str:
    """Return the name of a variable or field that refers to a managed object; "" if none does."""
    graphs = (runtime.object_graph(address) for runtime in session.runtimes)
    found = ((graph, graph.find(address)) for graph in graphs if graph is not None)
    return next((graph.name_variable(one.block) for graph, one in found if one is not None), "")


def _thread_names(session: Session, readers: Sequence[ManagedFrames]) -> Mapping[int, str]:
    names = dict(session.target.thread_names())
    for reader in readers:
        names.update(reader.thread_names())
    return names


def _describe_wait(wait: _Wait, names: Mapping[int, str]) -> str:
    """Return a sentence, for example "300 of them are waiting to lock <0xf1a0> (a
    java.lang.Object), to which App.LOCK refers and which thread 12 (worker) holds."."""
    sentence = f"{number(wait.threads)} of them are {printable(wait.lock.label(), 256)}"
    sentence += f", to which {shorten(wait.name, 300)} refers" if wait.name else ""
    held = f"{' and' if wait.name else ','} which {describe_thread(wait.owner, names)} holds" if wait.owner else ""
    return f"{sentence}{held}."


def _lock_facts(wait: _Wait, names: Mapping[int, str]) -> dict[str, object]:
    lock = wait.lock
    return {
        "threads": wait.threads,
        "kind": lock.kind,
        "type": lock.type or None,
        "address": hex(lock.address),
        "variable": wait.name or None,
        "owner": wait.owner or None,
        "owner_name": names.get(wait.owner),
    }
