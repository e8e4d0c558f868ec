"""Bounds of thread stacks, from struct pthread: two words among others."""

from __future__ import annotations

from struct import pack

from fake import FakeTarget, thread

from findleaks.engine.load import load
from findleaks.libc.stacks import dead_stacks, thread_stacks
from findleaks.target.base import Module, Range, Thread

STATIC = 0x400000
PROGRAM = Module("program", 0, STATIC, STATIC + 0x10000)
BLOCK = 0x690 // 8
"""The word of struct pthread that is the start of the stack, `stackblock`."""


NONE = Range(0, 0)


def descriptor(tcb: int, stack: Range = NONE, **words: int) -> bytes:
    """Return a struct pthread at `tcb`, which begins with its own address."""
    made = [0] * 256
    made[0] = made[2] = tcb
    made[BLOCK], made[BLOCK + 1] = stack.start, stack.end - stack.start
    for name, value in words.items():
        made[int(name[1:])] = value
    return pack("<256Q", *made)


def find_stacks(descriptors: dict[int, bytes], threads: list[Thread]) -> dict[int, Range]:
    return thread_stacks(FakeTarget(descriptors, threads=threads, modules=[PROGRAM]))


def test_two_addresses_of_a_static_program_are_no_stack() -> None:
    """Two words look like an address and a size that surround the TLS block: in a static program, the block of the main
    thread, and all addresses in it, are low."""
    tcb = STATIC + 0xC478
    low = {tcb: descriptor(tcb, _40=tcb, _41=STATIC + 0x40C0, _60=STATIC, _61=0x400000)}
    assert find_stacks(low, [thread(1, sp=0x7FFC00001000, thread_pointer=tcb)]) == {}


def test_threads_have_the_bounds_at_the_same_offset() -> None:
    stacks = {tid: Range(0x7F0000000000 + tid * 0x900000, 0x7F0000000000 + tid * 0x900000 + 0x801000) for tid in (2, 3)}
    tcbs = {tid: stack.end - 0x940 for tid, stack in stacks.items()}
    low = STATIC + 0xC478
    memory = {low: descriptor(low, _40=low, _41=STATIC + 0x40C0)}
    memory.update({tcbs[tid]: descriptor(tcbs[tid], stack) for tid, stack in stacks.items()})
    # The second thread runs on another stack, that of a coroutine. The bounds in its struct pthread are still valid.
    threads = [thread(1, sp=0x7FFC00001000, thread_pointer=low)]
    threads += [thread(2, sp=stacks[2].start + 0x5000, thread_pointer=tcbs[2]), thread(3, sp=0x7F8000000000, thread_pointer=tcbs[3])]
    assert find_stacks(memory, threads) == stacks


def test_a_stack_of_the_program_may_be_anywhere() -> None:
    """pthread_attr_setstack(3): the stack is an array of the program, not aligned to a page, and contains struct pthread."""
    stack = Range(STATIC + 0x2010, STATIC + 0x8010)
    tcb = stack.end - 0x940
    memory = {tcb: descriptor(tcb, stack).ljust(0x940, b"\0")}
    assert find_stacks(memory, [thread(7, sp=stack.start + 0x3000, thread_pointer=tcb)]) == {7: stack}


def test_a_stack_does_not_end_in_unmapped_memory() -> None:
    """An address before the main thread's stack, and another address which, as a size, would put the end after the stack."""
    tcb = 0x7FFFA2E33000
    memory = {tcb: descriptor(tcb, Range(tcb - 0x690, tcb + 0x1406B4DA8))}
    assert find_stacks(memory, [thread(1, sp=tcb + 0x2DEEB000, thread_pointer=tcb)]) == {}


def test_a_stack_in_use_is_not_unused() -> None:
    """A stack in use is not unused memory, even if the core has a wrong thread pointer. Its struct pthread then looks
    like that of a thread that has ended."""
    stacks = {tid: Range(0x7F0000000000 + tid * 0x900000, 0x7F0000000000 + tid * 0x900000 + 0x801000) for tid in (2, 3, 4)}
    tcbs = {tid: stack.end - 0x940 for tid, stack in stacks.items()}
    memory = {tcbs[tid]: descriptor(tcbs[tid], stack) for tid, stack in stacks.items()}
    threads = [
        thread(2, sp=stacks[2].start + 0x5000, thread_pointer=tcbs[2]),
        thread(3, sp=stacks[3].start + 0x5000, thread_pointer=0x2FB0C60),
    ]
    target = FakeTarget(memory, threads=threads, modules=[PROGRAM])
    assert dead_stacks(target, load(target.arch), target.regions()) == [stacks[4]]
