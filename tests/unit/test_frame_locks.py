"""Deadlocks are cycles of waiting threads. Stacks are compared without the addresses of locks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from findleaks.unwind.frame_locks import ELIMINATED, LOCK, LOCKED, FrameLock, LockWait, describe_deadlock, find_deadlocks


def make_waits(owners: dict[int, int]) -> list[LockWait]:
    return [LockWait(tid, FrameLock(LOCK, "X", 16 * tid, owner)) for tid, owner in owners.items()]


def test_chains_are_no_deadlocks() -> None:
    assert find_deadlocks(make_waits({1: 2, 2: 3, 4: 0})) == []
    # A thread that has just acquired the lock
    assert find_deadlocks(make_waits({1: 2, 2: 2})) == []


def test_threads_that_wait_for_a_cycle_are_not_in_it() -> None:
    ((*cycle,),) = find_deadlocks(make_waits({1: 5, 5: 3, 3: 4, 4: 5, 9: 1}))
    assert [one.thread for one in cycle] == [3, 4, 5]
    assert describe_deadlock(cycle[:1], {3: "A\n", 4: ""}) == "thread 3 (A\\n) is waiting to lock <0x30> (a X), which thread 4 holds"


@given(st.dictionaries(st.integers(1, 12), st.integers(0, 12)))
def test_each_cycle_is_found_once(owners: dict[int, int]) -> None:
    def returns(tid: int) -> bool:
        at = owners[tid]
        for _ in range(len(owners)):
            if at == tid or at not in owners:
                break
            at = owners[at]
        return at == tid and owners[tid] not in (0, tid)

    found = find_deadlocks(make_waits(owners))
    assert sorted(one.thread for cycle in found for one in cycle) == sorted(filter(returns, owners))
    for cycle in found:
        assert [one.lock.owner for one in cycle] == [one.thread for one in [*cycle[1:], cycle[0]]]


def test_objects_of_one_type_are_equal_locks() -> None:
    assert FrameLock(LOCKED, "X", 1, 2) == FrameLock(LOCKED, "X", 3) != FrameLock(LOCKED, "Y", 1, 2)
    assert len({FrameLock(LOCKED, "X", 1), FrameLock(LOCKED, "X", 2), FrameLock(LOCK, "X", 2)}) == 2
    assert FrameLock(LOCKED, "X", 1).label(has_address=False) == "locked (a X)"
    assert FrameLock(ELIMINATED, "").label() == "eliminated <object was not allocated>"
