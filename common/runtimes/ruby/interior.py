"""Find blocks of Ruby to which only pointers into the middle of the block refer.

Sources: gc.c of 2.7 and 3.0 (heap_page_allocate): a heap page is a block of posix_memalign, and
struct heap_page has the address of the first slot, after the header of the page. vm_core.h and
cont.c of 2.7 to 3.4: rb_thread_t refers to the execution context of its root fiber, which is in the
middle of rb_fiber_t. Among the first words of rb_execution_context_t are the addresses of the fiber
and of the thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.ruby.pages import Page

_CONTEXT_WORDS = 16  # words of an execution context that are searched for its fiber and its thread
_THREAD_WORDS = 32  # words of a thread that are searched for its execution context


def find_interior_offsets(memory: Memory, blocks: Blocks, pages: Iterable[Page], threads: Iterable[int]) -> list[tuple[int, int]]:
    """Return pairs: the size of a block, and the offset to which pointers refer. `threads`: the
    addresses of structures rb_thread_t; 0 is skipped."""
    contexts = (pair for thread in threads if thread for pair in _find_context_offsets(memory, blocks, thread))
    return sorted({*_find_page_offsets(blocks, pages), *contexts})


def _find_page_offsets(blocks: Blocks, pages: Iterable[Page]) -> Iterator[tuple[int, int]]:
    """Yield the size of the block of each page, and the offset of the page's first slot. Pages that
    are not in blocks are left out."""
    for page in pages:
        block = blocks.lookup(page.body)
        if block is not None and block[1] < page.start < block[1] + block[2]:
            yield block[2], page.start - block[1]


def _find_context_offsets(memory: Memory, blocks: Blocks, thread: int) -> Iterator[tuple[int, int]]:
    """Yield the size of the block of a thread's root fiber, and the offset of the execution context
    in it."""
    for word in memory.words(thread, _THREAD_WORDS) or ():
        block = blocks.lookup(word) if word else None
        if block is not None and block[1] < word:
            context = memory.words(word, min(_CONTEXT_WORDS, (block[1] + block[2] - word) // memory.size)) or ()
            if block[1] in context and thread in context:
                yield block[2], word - block[1]
