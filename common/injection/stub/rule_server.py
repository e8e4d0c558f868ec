"""Answer the requests of threads that wait in the stub.

A thread requests one of the following:

- an unwind rule
- the end of a stack
- whether an address is that of an isolate of V8
- which pages are readable
- the function of an interpreter's frame, which the server then reads

An answer about code or a stack also contains the rules of all outer frames on the stack, so that a
new stack makes a thread wait only once."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Optional

from findleaks.injection.own_memory import Read
from findleaks.injection.remote_syscall import read_mappings
from findleaks.injection.stub.chain_walk import ChainedFunctions, ChainWalk, name_frame
from findleaks.injection.stub.readable_pages import ReadablePages, is_readable_key
from findleaks.injection.stub.table import (
    ADDRESS,
    DEEPEST,
    EXACT,
    EXECUTES,
    FUNCTION,
    INTERPRETED,
    ISOLATE,
    LAST,
    MOST,
    NUMBER_AT,
    NUMBERED,
    SIGNAL,
    STACK,
    SWITCH,
    VALUE,
    Request,
    pack,
    unpack,
)
from findleaks.injection.stub.unwind_rules import Step, follow, step, step_function, step_generated
from findleaks.target.base import Range, Region, Target
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.managed_frames import CallFrame, CodeDescriptions, ManagedFrames, WalkFrame
from findleaks.unwind.stacks import NamedFrame

REOPEN_SECONDS = 0.2  # seconds between readings of mapped files, while addresses are in none
_TOP_BYTES = 1 << 14  # bytes of a stack that are read at once


class Rules:
    """The unwind rules of one process, by key. Hold `lock`, because only one thread may use them at
    a time.

    `generated`: frames of code that a runtime generated, by key. `functions`: functions that an
    interpreter executes, by key. Both are copies from the time when a thread had them on its stack.
    `chained`: functions in the chain of an interpreter's frames. `pages`: the memory that stubs may
    read. `has_many_functions`: whether there are too many functions, so that functions that are
    called for the first time from now on get no names."""

    def __init__(
        self,
        opened: Callable[[], Target],
        pid: int,
        read: Read,
        isolate: Callable[[int], bool],
        describe: Callable[[Target], CodeDescriptions] = lambda target: CodeDescriptions(),
    ) -> None:
        """`describe`: a function that returns descriptions of code without call frame
        information."""
        self.lock = threading.Lock()
        self.steps: dict[int, Step] = {}
        self.generated: dict[int, CallFrame] = {}
        self.functions: dict[int, Hashable] = {}
        self.chained = ChainedFunctions()
        self.has_many_functions = False
        self.pages = ReadablePages(pid)
        self._current: dict[int, bool] = {}
        self._open, self._pid, self._read, self._isolate = opened, pid, read, isolate
        self._top: tuple[int, bytes] = 0, b""  # the innermost part of a stack during `walk`
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._reopened_at = time.monotonic()
        self._describe = describe
        self.readers: Sequence[ManagedFrames] = ()
        self.target = opened()
        self._set_target(self.target)

    def _set_target(self, target: Target) -> None:
        before: Sequence[ManagedFrames] = self.readers
        self.target, (tables, self.readers) = target, self._describe(target)
        for reader in self.readers:
            for one in before:
                if type(one) is type(reader):
                    reader.inherit(one)
        self.unwinder = Unwinder(target, tables)
        self._read_again()

    def close(self) -> None:
        self.target.close()

    def step(self, key: int) -> Step:
        """Return the rule for a code address, which is given by its key."""
        known = self.steps.get(key)
        if known is None:
            generated, distance = described = self._describe_code(key)
            is_known = any(one is not None for one in described) or self.unwinder.executable(key & ADDRESS)
            if not is_known and time.monotonic() > self._reopened_at + REOPEN_SECONDS:
                self.reopen()  # code may have been mapped since
                generated, distance = self._describe_code(key)
            if generated is not None:
                self.generated[key] = generated
            known = step(self.unwinder, key) if generated is None else step_generated(generated, key)
            if distance is not None:
                known = step_function(distance, self._chain is not None and self._chain.names_frames)
            elif self._chain is not None and not key & EXACT and self._chain.executes(key):
                known = known._replace(value=known.value | EXECUTES)
            self.steps[key] = known
        return known

    def _describe_code(self, key: int) -> tuple[Optional[CallFrame], Optional[int]]:
        """Return `call_frame` and `code_distance` of generated code; None if no reader recognises
        the code."""
        frames = (reader.call_frame(key & ADDRESS) for reader in self.readers)
        distances = (reader.code_distance(key) for reader in self.readers if not key & EXACT)
        return next((one for one in frames if one is not None), None), next((one for one in distances if one is not None), None)

    @property
    def _chain(self) -> Optional[ManagedFrames]:
        """The reader of the runtime that maintains a chain of frames, if there is one."""
        return next((reader for reader in self.readers if reader.chain_settings), None)

    @property
    def chain(self) -> Sequence[int]:
        """The settings with which a stub finds the chain; see ManagedFrames."""
        return self._chain.chain_settings if self._chain is not None else ()

    @property
    def names_frames(self) -> bool:
        """Whether a reader names frames while a stack is walked; see ManagedFrames.walk."""
        return any(reader.names_frames for reader in self.readers)

    @property
    def is_paired(self) -> bool:
        """Whether each native frame of the interpreter executes one frame of the chain; see
        ManagedFrames."""
        return self._chain is not None and self._chain.is_paired

    def _function(self, address: int) -> Optional[Hashable]:
        found = (reader.function(address) for reader in self.readers)
        return next((function for function in found if function is not None), None)

    def _chained_function(self, request: Request) -> Optional[Hashable]:
        """Return the function whose number a thread waits for. If frames are named while a stack is
        walked, return the functions of the frame; see js_frame of stack_walk.S."""
        if self._chain is not None and self._chain.names_frames:
            return tuple(self._chain.call_functions(request.sp, request.place, request.fp)) or None
        return self._chain.function(request.place) if self._chain is not None else None

    def _keep_function(self, key: int) -> int:
        """Read the function of an interpreter's frame, given by its key. Returns the value of the
        key, which is not a rule, but a sign for the stub that the function was read."""
        if key not in self.functions:
            function = self._function(key & ~VALUE)
            if function is not None:
                self.functions[key] = function
        self.steps[key] = Step(pack(LAST), f"the return address {key:#x} is not code", False)
        return self.steps[key].value

    def name_bytecode(self, function: int, bytecode: int) -> Optional[NamedFrame]:
        """Return the frame of an interpreted function, given by the keys of its words. None if a
        word is damaged, or if the address is that of another function by now."""
        known = self.functions.get(function)
        if known is None or not self.is_current(function):
            return None
        found = (reader.name_bytecode(known, bytecode & ~VALUE) for reader in self.readers)
        return next((frame for frame in found if frame is not None), None)

    def name_chained(self, key: int) -> Optional[NamedFrame]:
        """Return the frame of a node with this key in a chain; None if the function of the node
        belongs to the interpreter itself."""
        return self._chain.name_bytecode(*self.chained.find(key)) if self._chain is not None else None

    def find_replacement(self, key: int) -> Sequence[NamedFrame]:
        """Return the managed functions that replace the native frame of a node; () if the native
        frame is not replaced."""
        function = self.chained.find(key).function
        return function if isinstance(function, tuple) and function and isinstance(function[0], NamedFrame) else ()

    def is_current(self, key: int) -> bool:
        """Return whether, at the last call of `check`, the code or function of a key was still the
        same as when it was on a stack. If it has changed, stacks with this key may have been
        recorded before or after the change."""
        if key not in self._current:
            function, frame = self.functions.get(key), self.generated.get(key)
            if frame is not None:
                self._current[key] = any(reader.is_current(key & ADDRESS, frame) for reader in self.readers)
            else:
                self._current[key] = function is not None and self._function(key & ~VALUE) == function
        return self._current[key]

    def check(self) -> None:
        """Determine which code and functions have not changed since they were on stacks. The
        process is stopped, and has recorded no stack since."""
        self._current = {key: False for key, current in self._current.items() if not current}
        self._read_again()
        for key in (*self.generated, *self.functions):
            self.is_current(key)

    def _read_again(self) -> None:
        for reader in self.readers:
            reader.read_again(self._read)

    def see_threads(self, thread_pointers: Sequence[int]) -> None:
        """See ManagedFrames.see_threads."""
        self._read_again()
        for reader in self.readers:
            reader.see_threads(thread_pointers)

    def reopen(self) -> None:
        """Read the mappings again."""
        before = self.target
        self._set_target(self._open())
        before.close()
        self._reopened_at = time.monotonic()

    def stack(self, sp: int) -> Optional[Region]:
        """Return the mapping that contains a stack pointer; None if there is none."""
        found = self._region(sp)
        if found is None:
            self._regions = read_mappings(self._pid)
            self._starts = [region.start for region in self._regions]
            found = self._region(sp)
        return found if found is not None and found.readable and found.writable else None

    def _region(self, address: int) -> Optional[Region]:
        at = bisect_right(self._starts, address) - 1
        return self._regions[at] if at >= 0 and address in self._regions[at] else None

    def forget(self) -> None:
        """Drop the cached mappings, which may have changed."""
        self._regions, self._starts = [], []

    def answer(self, request: Request) -> list[tuple[int, int]]:
        """Return the (key, value) pairs of rules that answer a request; [] if there are none."""
        key = request.key
        if is_readable_key(key):
            return [(key, self.pages.ask(key, request.place))]
        self._read_again()
        if key & VALUE and key & NUMBERED:
            return [(key, self.chained.number(self._chained_function(request)) << NUMBER_AT)]
        if key & VALUE:
            return [(key, self._keep_function(key))]
        if key & EXACT or not key & (STACK | ISOLATE):
            return self._along(key, request.sp, request.fp)
        if key & ISOLATE:
            return [(key, 1 if self._isolate(key & ADDRESS) else 2)]
        self.forget()
        region = self.stack((key & ~STACK) << 12)
        if region is None:
            return []
        return [(key, region.end), *self._along(request.place, request.sp, request.fp)][:MOST]

    def _along(self, key: int, sp: int, fp: int) -> list[tuple[int, int]]:
        """Return the rules of this code address and of all of its callers."""
        pairs = islice(self._follow(key, sp, fp), 2 * MOST)
        return list({key: value for key, value in pairs if value is not None and key}.items())[:MOST]

    def walk(self, key: int, sp: int, fp: int, thread_pointer: int) -> tuple[tuple[int, ...], bool]:
        """Walk a stack as the stub does. Returns the keys of its nodes, innermost first, and
        whether it cannot be followed to its end."""
        self._read_again()
        chain = ChainWalk(self._chain, thread_pointer, self.chained) if self._chain is not None else None
        walks = [walk for walk in (reader.walk(thread_pointer) for reader in self.readers) if walk is not None]
        self._top = sp, self._read(sp, _TOP_BYTES)
        keys = [key for key, _ in islice(self._follow(key, sp, fp, chain, walks), DEEPEST) if key & EXACT or not key & STACK]
        self._top = 0, b""
        return (tuple(keys), True) if keys[-1] else (tuple(keys[:-1]), False)

    def _follow(
        self, key: int, sp: int, fp: int, chain: Optional[ChainWalk] = None, walks: Sequence[WalkFrame] = ()
    ) -> Iterator[tuple[int, Optional[int]]]:
        """Yield the key and the value of each rule that a walk needs, innermost first. Also yield
        the keys of nodes that need no rule, with the value None. The last key is 0 if the stack was
        followed to its end. `chain` adds nodes of the interpreter's frames of the thread, and
        `walks` adds those of the frames that the functions of ManagedFrames.walk name."""
        region = self.stack(sp)
        low, high = (sp, region.end) if region is not None else (sp, sp)
        while key:
            value = self.step(key).value
            yield key, value
            if not key & EXACT:
                yield from name_frame(walks, self.chained, key, fp)
            kind, *_, executes = unpack(value)
            caller = follow(value, key, sp, fp, low, high, self._word)
            if caller is None:
                return
            if chain is not None:
                yield from chain.nodes(kind == SIGNAL, executes and sp < caller[1], Range(sp, caller[1]), Range(low, high))
            if kind == SIGNAL:
                walks = ()  # the signal may have interrupted code that moves functions
            if kind == SWITCH:
                region = self.stack(fp)
                if region is None:
                    return
                low, high = fp, region.end
                yield STACK | fp >> 12, high
            elif kind == INTERPRETED:
                words = [self._present(fp + at) for at in (unpack(value).pointer, FUNCTION)]
                yield words[0] | VALUE, None
                yield words[1] | VALUE, self._keep_function(words[1] | VALUE)
            key, sp, fp = caller
            # The stack changes from that of a signal handler to the interrupted one
            if key and not low <= sp < high:
                region = self.stack(sp)
                if region is None:
                    return
                low, high = sp, region.end
                yield STACK | sp >> 12, high
        if chain is not None:
            yield from chain.last_nodes()
        yield 0, None

    def _present(self, address: int) -> int:
        """Return a word; 0 if it is unreadable."""
        return int.from_bytes(self._read(address, 8), "little")

    def _word(self, address: int) -> int:
        at = address - self._top[0]
        data = self._top[1][at : at + 8] if at >= 0 else b""
        data = data if len(data) == 8 else self._read(address, 8)
        if len(data) < 8:
            raise LookupError(address)
        return int.from_bytes(data, "little")
