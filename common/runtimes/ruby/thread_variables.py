"""List the fiber-local variables and the fiber storage of Ruby's threads and suspended fibers, and
the thread variables of threads.

A thread refers to the execution context of the fiber that it executes. The context contains a
pointer to the thread. The next word points to the table of the fiber's local variables (Thread#[]).
Since 3.2, the fourth word after the pointer is the Hash of the fiber's storage (Fiber[]), or nil.
A fiber contains its context (cont.c, rb_context_t, rb_fiber_t).
Thread variables (Thread#thread_variable_get) are in a Hash. The variable `locals` of the Thread
object refers to this Hash (generic_variables.py).

Sources: vm_core.h (rb_execution_context_t, rb_thread_t), thread_pthread.h (struct
rb_native_thread), thread.c (threadptr_local_aset, rb_thread_variable_set) of 2.7.4, 3.1.2, 3.3.8
and 3.4.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.census import MASK, T_HASH
from findleaks.runtimes.ruby.generic_variables import GenericVariables
from findleaks.runtimes.ruby.symbols import Symbols, serial_number
from findleaks.runtimes.ruby.tables import Tables
from findleaks.runtimes.ruby.values import ENTRIES
from findleaks.target.interruptible import interruptible
from findleaks.target.thread_labels import number_threads

DATA = 32  # offset in a Thread object of the pointer to its rb_thread_t
_LOCALS = "locals"
_THREAD_WORDS, _CONTEXT_WORDS = 10, 12
"""Number of words at the beginning of a thread, one of which points to its context; number of words
at the beginning of a context, one of which points to its thread."""

_HEAD, _NATIVE_WORDS = 40, 4
"""Number of words at the beginning of a thread, one of which is its pthread_t, or points to its
rb_native_thread; number of words that are read of a rb_native_thread."""

_FIRST, _PLACES, _STORAGE = 4, 9, 4
"""The address of the thread is word _FIRST of a context, or one of the words up to _PLACES - 1. The
fiber's storage is _STORAGE words after it."""

_FIBER_WORDS = 64  # at the beginning of a fiber, among which are the first words of its context

MANY = 8  # if at least this many threads have a variable of one name, the threads are not named
_MOST = 1 << 20  # maximum number of words in a stack of values


class ThreadVariables:
    """Lists variables of `threads` and `fibers`, the addresses of Thread and Fiber objects.
    `generic` reads variables of single objects."""

    def __init__(
        self,
        memory: Memory,
        tables: Tables,
        symbols: Symbols,
        generic: GenericVariables,
        long: bool,
        threads: Sequence[int],
        fibers: Sequence[int] = (),
    ) -> None:
        self._memory, self._tables, self._symbols, self._generic, self._long = memory, tables, symbols, generic, long
        self._threads, self._fibers = threads, fibers

    def find(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name of each variable, the address of the reference, and the value. A variable
        that MANY threads have is named without the thread."""
        found = [(owner, kind, *one) for owner, kind, named in self._of_threads() for one in named if one[0]]
        counts = Counter((kind, name) for _, kind, name, _, _ in found)
        for owner, kind, name, address, value in found:
            many = counts[kind, name] >= MANY
            yield f"{kind}s :{name} of threads" if many else f"{owner}'s {kind} :{name}", address, value
        for kind, named in self._of_suspended_fibers():
            for name, address, value in named:
                if name:
                    yield f"{kind} :{name} of suspended fibers", address, value

    def _of_threads(self) -> Iterator[tuple[str, str, Iterator[tuple[str, int, int]]]]:
        """Yield the name of each thread, the kind of its variables, and the variables."""
        for slot in self._threads:
            thread = self._memory.word(slot + DATA)
            found = self._find_fiber_locals(thread) if thread else None
            if thread and found is not None:
                owner = self._label(slot, thread)
                yield owner, "fiber-local variable", self._fiber_locals(found[0])
                yield owner, "fiber storage", self._fiber_storage(found[1])
                yield owner, "thread variable", self._thread_variables(slot)

    def _of_suspended_fibers(self) -> Iterator[tuple[str, Iterator[tuple[str, int, int]]]]:
        """Yield the kind of the variables of each fiber that no thread executes, and the
        variables."""
        if not self._fibers:
            return
        threads = {self._memory.word(slot + DATA) or 0 for slot in self._threads} - {0}
        executed = {word for thread in threads for word in self._memory.words(thread, _THREAD_WORDS) or ()}
        for slot in interruptible(self._memory.target, self._fibers):
            fiber = self._memory.word(slot + DATA) or 0
            words = self._memory.words(fiber, _FIBER_WORDS) or self._memory.words(fiber, _FIBER_WORDS // 2) or ()
            refs = [(at, word) for at, word in enumerate(words) if word in threads]
            starts = [(at - index, thread) for at, thread in refs for index in range(_FIRST, _PLACES)]
            for at, thread in starts:
                is_whole = 0 <= at < len(words) - _CONTEXT_WORDS
                is_suspended = is_whole and fiber + 8 * at not in executed
                found = self._read_context(words[at : at + _CONTEXT_WORDS], thread) if is_suspended else None
                if found is not None:
                    yield "fiber-local variables", self._fiber_locals(found[0])
                    yield "fiber storage", self._fiber_storage(found[1])
                    break

    def _find_fiber_locals(self, thread: int) -> Optional[tuple[int, int]]:
        """Return the address of the table of fiber-local variables, and the Hash of the fiber's
        storage (0 without one), which are read from the thread's context. Return None if the thread
        has no context. The thread has then ended, and another thread may have the same
        pthread_t."""
        for context in self._memory.words(thread, _THREAD_WORDS) or ():
            words = self._memory.words(context, _CONTEXT_WORDS) if context and context % 8 == 0 else None
            found = self._read_context(words, thread) if words is not None else None
            if found is not None:
                return found
        return None

    def _read_context(self, words: Sequence[int], thread: int) -> Optional[tuple[int, int]]:
        """Return the table and the Hash of `_find_fiber_locals` from the first words of a context
        of this thread; None if it is not a context."""
        # A context begins with the address of its stack of values, the number of words of the
        # stack, and the address of a control frame in the stack.
        if thread not in words[_FIRST:_PLACES] or not words[0] < words[2] < words[0] + 8 * min(words[1], _MOST):
            return None
        at = words.index(thread, _FIRST)
        table, storage = words[at + 1], words[at + _STORAGE] if at + _STORAGE < len(words) else 0
        is_hash = storage % 8 == 0 and (self._memory.word(storage) or 0) & MASK == T_HASH
        # Before 3.2, this word is an address in the stack of values (root_lep).
        return table, storage if is_hash and not words[0] <= storage < words[0] + 8 * words[1] else 0

    def _fiber_storage(self, storage: int) -> Iterator[tuple[str, int, int]]:
        for key, value, address in self._tables.pairs(storage, self._long) if storage else ():
            yield self._symbols.name_symbol(key), address, value

    def _fiber_locals(self, table: int) -> Iterator[tuple[str, int, int]]:
        for serial, value, address in self._tables.ids(table):
            yield self._symbols.name(serial), address, value
        # In Ruby 2.7, the table is an st_table.
        for number, value, address in self._tables.entries(table, ENTRIES):
            yield self._symbols.name(serial_number(number)), address, value

    def _thread_variables(self, slot: int) -> Iterator[tuple[str, int, int]]:
        for one in self._generic.of(slot):
            if self._symbols.name(one.serial) == _LOCALS:
                for key, value, address in self._tables.pairs(one.value, self._long):
                    yield self._symbols.name_symbol(key), address, value

    # -- names of threads

    @cached_property
    def _labels(self) -> dict[int, str]:
        """The name of each thread, by its thread pointer."""
        target = self._memory.target
        label = number_threads(target)
        return {one.thread_pointer: label(one.tid) for one in target.threads() if one.thread_pointer}

    def _label(self, slot: int, thread: int) -> str:
        """Return the name of a thread. It is found by the pthread_t, which in the C library is the
        thread pointer. Up to Ruby 3.1, a rb_thread_t contains the pthread_t. In later versions, it
        points to a rb_native_thread {number, VM, pthread_t, …}."""
        words = self._memory.words(thread, _HEAD) or ()
        found = {word for word in words if word in self._labels}
        for word in words if not found else ():
            native = self._memory.words(word, _NATIVE_WORDS) if word and word % 8 == 0 else None
            if native is not None and native[1] and native[1] in words and native[2] in self._labels:
                found.add(native[2])
        return self._labels[found.pop()] if len(found) == 1 else f"Thread {slot:#x}"
