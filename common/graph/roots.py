"""Roots of the scan: registers, live stacks, and all writable memory that belongs to no allocator.

A root is memory that the program can read without going through a heap block. Two kinds of dead
stack memory are not roots, because the next call overwrites them: memory below a live thread's
stack pointer, and stacks of ended threads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.graph.unread import Unread
from findleaks.libc.loader import table_blocks
from findleaks.libc.stacks import dead_stacks, dtv_words, ended_thread_pointers, thread_stacks, unjoined_threads
from findleaks.target.base import Range, Region, Target, is_shared_memory
from findleaks.target.elf import PF_W, PT_LOAD
from findleaks.target.modules import module_headers
from findleaks.target.ranges import merge_ranges, region_index, subtract
from findleaks.target.tags import remove_tag

if TYPE_CHECKING:
    from findleaks.target.kernel_references import KernelReference

_KERNEL_PAGES = ("[vvar", "[vdso", "[vsyscall")
# the prefix of names given by prctl(PR_SET_VMA_ANON_NAME): "[anon: glibc: malloc]"
_ANONYMOUS = "[anon"


def root_regions(regions: Sequence[Region]) -> list[Region]:
    """Return the regions in which the program may have stored a pointer:

    - writable regions
    - anonymous regions and shared memory that were made read-only
    - a module's RELRO, right below its writable part, which ld.so and constructors wrote before it
      was made read-only

    Read-only memory right below the vDSO belongs to the kernel, even if it has no name in the core,
    as on ARM."""
    found = []
    for region, after in zip(regions, [*regions[1:], None]):
        if not region.readable or region.name.startswith(_KERNEL_PAGES):
            continue
        if after is not None and after.name == "[vdso]" and after.start == region.end and not region.writable:
            continue
        relro = (
            after is not None and after.writable and after.start == region.end and region.name == after.name and region.name.startswith("/")
        )
        anonymous = not region.name or region.name.startswith(_ANONYMOUS) or is_shared_memory(region.name)
        if region.writable or (not region.executable and (relro or anonymous)):
            found.append(region)
    return found


def writable_ranges(target: Target) -> list[Range]:
    """Return the ranges of `root_regions`, and memory that the process wrote to and then protected
    (PROT_NONE). The ranges are sorted and disjoint."""
    return sorted([*(Range(r.start, r.end) for r in root_regions(target.regions())), *target.protected])


def root_ranges(
    target: Target,
    engine: Engine,
    claimed: Iterable[Range],
    stack_at: Optional[Callable[[int], Optional[Range]]] = None,
) -> list[Range]:
    """Return the sorted, disjoint ranges to scan: root regions without memory of allocators and
    dead stack. See `dead_ranges` for `stack_at`."""
    candidates = root_regions(target.regions())
    dead = dead_ranges(target, engine, candidates, stack_at)
    return subtract(writable_ranges(target), [*claimed, *dead, *page_beginnings(target)])


def page_beginnings(target: Target) -> list[Range]:
    """Return memory that is mapped only because mappings begin at a page boundary: the bytes before
    a writable segment in its first page. These are the end of another segment of the file, usually
    code.

    Only read-only memory is returned, such as RELRO. If the page is writable, musl's malloc uses
    these bytes for its heap."""
    regions, found = target.regions(), []
    for module in target.modules():
        parsed = module_headers(target, module)
        loads = [segment for segment in parsed[1] if segment.type == PT_LOAD] if parsed else []
        starts = [segment.vaddr + module.bias for segment in loads if segment.flags & PF_W]
        spans = []
        for start, index in ((start, region_index(regions, start)) for start in starts):
            if index >= 0 and not regions[index].writable and regions[index].start < start:
                spans.append(Range(regions[index].start, start))
        whole = [Range(one.vaddr + module.bias, one.vaddr + module.bias + one.memsz) for one in loads]
        found += subtract(merge_ranges(spans), whole)
    return sorted(found)


def dead_ranges(
    target: Target, engine: Engine, candidates: Sequence[Region], stack_at: Optional[Callable[[int], Optional[Range]]] = None
) -> list[Range]:
    """Return the stack memory that no live frame uses. `stack_at` finds the stack for a stack
    pointer that libc does not know (None: use `stack_region`)."""
    stacks = thread_stacks(target)
    dead = list(dead_stacks(target, engine, candidates))
    if dead:  # pthread_join still reads the return values of threads
        results = (one.result for one in unjoined_threads(target, engine, candidates) if one.result)
        dead = subtract(dead, sorted(Range(result, result + target.arch.word) for result in results))
    regions = target.regions()
    find_stack = stack_at or (lambda sp: stack_region(regions, sp))
    for thread in target.threads():
        below = (thread.sp - target.arch.red_zone) & -target.arch.word
        stack = stacks.get(thread.tid) or find_stack(thread.sp)
        if stack is not None and stack.start <= below < stack.end:
            dead.append(Range(stack.start, below))
    return sorted(dead)


def stack_region(regions: Sequence[Region], sp: int) -> Range | None:
    """Return the region that contains `sp` if it is certainly a stack: the main thread's stack, or
    a region right above a guard page."""
    index = region_index(regions, sp)
    if index < 0:
        return None
    region, before = regions[index], regions[index - 1] if index else None
    guarded = before is not None and before.end == region.start and not (before.readable or before.writable)
    return Range(region.start, region.end) if region.name == "[stack]" or guarded else None


def register_words(target: Target, unread: Unread | None = None, others: Sequence[int] | None = None) -> list[int]:
    """Return the root words: registers of all threads except those in `unread`, addresses at which
    their DTVs were allocated, and `others` (None: those of `library_words`).

    glibc's only reference to a DTV is in the thread control block, and points to the second entry
    of the DTV (elf/dl-tls.c, allocate_dtv). This is an interior pointer, so without this rule each
    DTV would be "possibly lost", as in memcheck."""
    words: list[int] = []
    for thread in target.threads():
        words += unread.live(thread) if unread is not None else thread.words or thread.registers.values()
        if thread.thread_pointer:
            words += dtv_words(target, thread.thread_pointer)
    if target.tagged:
        words = list(map(remove_tag, words))
    return [*words, *(library_words(target) if others is None else others)]


def kernel_words(target: Target, blocks: Blocks, references: Sequence[KernelReference]) -> list[tuple[int, KernelReference]]:
    """Return the root word of each reference that the kernel keeps.

    If a block starts at the value without its low three bits, these bits are flags, and the word is
    the start of the block. For example, nginx keeps such a flag in epoll's data. Other values are
    returned as they are."""
    values = array("Q", (remove_tag(one.value) if target.tagged else one.value for one in references))
    starts = array("Q", (value & ~7 for value in values))
    indices, _ = blocks.find_all(starts) if len(blocks) else (array("I"), array("Q"))
    begins = [index != NO_BLOCK and blocks.address(index) == start for index, start in zip(indices, starts)]
    words = (start if at_start else value for start, value, at_start in zip(starts, values, begins)) if begins else values
    return list(zip(words, references))


def library_words(target: Target) -> list[int]:
    """Return two kinds of addresses: those at which the DTVs of ended threads were allocated, which
    glibc keeps with their stacks, and those of the blocks with ld.so's table of loaded files."""
    words = [word for ended in ended_thread_pointers(target) for word in dtv_words(target, ended)]
    return words + table_blocks(target)
