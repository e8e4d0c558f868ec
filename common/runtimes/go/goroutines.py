"""List goroutines, with their states and call stacks, without symbols.

runtime.allgs, a slice of pointers to all g structures, is recognised by what it points to. The
offsets of fields come from the type descriptor of runtime.g.

Sources: Go 1.18 to 1.26, src/runtime: runtime2.go (g, gobuf, the states, waitReasonStrings),
proc.go (allgs), traceback.go (unwinder.next: how a frame leads to its caller;
isSystemGoroutine), signal_arm64.go (preparePanic, pushCall)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.moduledata import Program
from findleaks.runtimes.go.pclntab import TOP_FRAME, Function, FunctionTable
from findleaks.runtimes.user_threads import describe_state
from findleaks.target.arch import AARCH64
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.elf import occurrences
from findleaks.target.ranges import nonzero_pieces
from findleaks.unwind.frames import Frame
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

STATES = {1: "runnable", 2: "running", 3: "in a system call", 4: "waiting", 8: "copying its stack", 9: "preempted", 10: "leaked"}
_RUNNING, _SYSCALL, _DEAD, _EXTRA = 2, 3, 6, 11
_WITHOUT_STACK = (0, _DEAD, _EXTRA)  # a new structure, and goroutines that have ended
RUNNING, SYSCALL, COPYING = STATES[_RUNNING], STATES[_SYSCALL], STATES[8]
_STACK_SIZES = frozenset(1 << bits for bits in range(11, 34))
_SCAN = 0x1000  # a flag in the state: the collector scans the stack
_MAX_GOROUTINES = 1 << 26
_MAX_FRAMES = 128
_CHECKED = 64  # goroutines of a list that are checked
_FIRST_REASON = b"GC assist marking"  # number 1 of waitReasonStrings
_REASONS = 64
_FIELDS = ("stack.lo", "stack.hi", "m", "sched.sp", "sched.pc", "syscallsp", "syscallpc", "atomicstatus", "goid", "waitsince", "waitreason")
# Start functions of goroutines that do not belong to the runtime.
_USERS = ("runtime.main", "runtime.corostart", "runtime.handleAsyncEvent")
# Start functions of the goroutines that run finalizers (by version) and cleanups.
FINALIZER_LOOPS, CLEANUP_LOOP = ("runtime.runFinalizers", "runtime.runfinq"), "runtime.runCleanups"
RUNNERS = (*FINALIZER_LOOPS, CLEANUP_LOOP)
# C code called this function. The next frame is that of the Go code that had called C. Its address
# is not the return address of a call.
CALLED_BY_C = "runtime.cgocallback"
# A signal handler makes the interrupted function call these, at any instruction.
INJECTED = ("runtime.sigpanic", "runtime.asyncPreempt", "runtime.debugCallV2")
# On AArch64 the handler then saves the link register of the interrupted function above the frame of
# the called function. The saved register takes this number of bytes.
SAVED_LINK = 16
_FIELDS_FURTHER = ("gopc", "startpc")


class CallFrame(NamedTuple):
    """A frame on a goroutine's stack. `called`: whether `pc` is a return address. The frame
    occupies [`sp`, `end`) of the stack. Its first `depth` bytes are those that the function itself
    uses."""

    pc: int
    called: bool
    sp: int
    end: int
    depth: int
    table: FunctionTable
    function: Function


class _G(NamedTuple):
    """The offsets of fields of runtime.g, and its size."""

    size: int
    at: Mapping[str, int]


class Goroutines:
    """The goroutines of a program, and the functions that they execute."""

    def __init__(self, target: Target, engine: Engine, program: Program, data: Sequence[Range], file: Module) -> None:
        """`data`: Go's variables; `file`: the program."""
        self._target, self._engine, self._program, self._data, self._module = target, engine, program, data, file
        self._memory = Memory(target)
        self.tables = [FunctionTable(self._memory, module) for module in program.modules]
        self._layout = self._find_layout()
        self._frames: dict[tuple[int, bool], tuple[NamedFrame, ...]] = {}
        self._places: dict[tuple[int, bool], tuple[FunctionTable, Function, int]] = {}
        self.structures: dict[int, int] = {}
        """The addresses of the listed goroutines' g structures, by number of the goroutine."""
        self.is_complete = True
        """Whether `list` has read each goroutine."""

    def _find_layout(self) -> Optional[_G]:
        types = self._program.types
        address = types.find("runtime.g")
        one = types.at(address) if address is not None else None
        if address is None or one is None:
            return None
        found = {name: types.offset(address, name) for name in (*_FIELDS, *_FIELDS_FURTHER)}
        known = {name: offset for name, offset in found.items() if offset is not None and offset + 8 <= one.size}
        return _G(one.size, known) if all(name in known for name in _FIELDS) else None

    @cached_property
    def addresses(self) -> Sequence[int]:
        """The addresses of all g structures, including unused ones; () if they are not found."""
        layout = self._layout
        best: tuple[int, ...] = ()
        if layout is None:
            return best
        for start, end in self._data:
            before: tuple[int, ...] = ()  # a slice may extend over two pieces
            behind = 0
            for piece in nonzero_pieces(self._target, start, end):
                own = self._target.arch.words(piece.data)
                words = (*before, *own) if piece.address == behind else tuple(own)
                before, behind = words[-2:], piece.address + len(piece.data)
                slices = zip(words, words[1:], words[2:])
                for place, count in [one[:2] for one in slices if 0 < one[1] <= one[2] < _MAX_GOROUTINES and one[0] and not one[0] % 8]:
                    if len(best) < count:
                        best = self._check_elements(layout, place, count) or best
        return best

    def _check_elements(self, layout: _G, place: int, count: int) -> tuple[int, ...]:
        """Return the elements of a slice if they are goroutines, else ()."""
        first = self._memory.words(place, min(count, _CHECKED)) or ()
        if not first or len(set(first)) != len(first) or not all(self._is_goroutine(layout, one) for one in first):
            return ()
        # If a stale pointer to a former array of goroutines precedes a large number, only elements
        # at the beginning are goroutines. In a truncated core, some goroutines cannot be read.
        some = [self._memory.word(one) or 0 for one in range(place, place + 8 * count, 8 * -(-count // _CHECKED))]
        found = [one for one in some if self._is_goroutine(layout, one)]
        if 2 * len(found) <= len(some) or any(not one or self._memory.word(one) is not None for one in some if one not in found):
            return ()
        # mspans without neighbours look like goroutines that have ended. Therefore at least one of
        # the checked goroutines must have a stack. It need not be the first goroutine, because
        # the first goroutine of a library has ended.
        if not any(self._memory.word(one) for one in first):
            return ()
        return self._memory.words(place, count) or ()

    def _is_goroutine(self, layout: _G, address: int) -> bool:
        if address % 8:
            return False
        low, high = self._memory.words(address, 2) or (1, 0)
        number = self._memory.word(address + layout.at["goid"])
        state = self._memory.word(address + layout.at["atomicstatus"] // 8 * 8)
        if number is None or state is None:
            return False
        state = state >> 8 * (layout.at["atomicstatus"] % 8) & 0xFFFFFFFF & ~_SCAN
        if low == high == 0:
            return state in _WITHOUT_STACK
        return state <= _EXTRA and high - low in _STACK_SIZES

    def reasons(self) -> Sequence[str]:
        """Return runtime.waitReasonStrings; () if not found."""
        for place in self._find_text(_FIRST_REASON):
            for start, end in self._data:
                for piece in nonzero_pieces(self._target, start, end):
                    for address in self._engine.search(piece, place, place + 1):
                        words = self._memory.words(address - 16, 2 * _REASONS) or ()
                        if words[3:4] == (len(_FIRST_REASON),) and words[1] == 0:
                            return list(self._strings(words))
        return ()

    def _find_text(self, text: bytes) -> Iterator[int]:
        """Yield the addresses of this text in the program's constants."""
        for region in self._target.regions():
            if region.readable and not region.writable and self._module.start <= region.start < self._module.end:
                for piece in self._target.pieces(region.start, region.end):
                    yield from (piece.address + at for at in occurrences(bytes(piece.data), text))

    def _strings(self, words: Sequence[int]) -> Iterator[str]:
        for at in range(0, len(words), 2):
            if words[at + 1] > 64 or (at and not words[at + 1]):
                return
            yield self._memory.read(words[at], words[at + 1]).decode("ascii", "replace") if words[at + 1] else ""

    def list(self, trace: Callable[[Thread], Iterable[Frame]]) -> Sequence[UserThread]:
        """Return all goroutines that have not ended, in the order of their creation. `trace`:
        returns the frames of a thread."""
        layout, addresses = self._layout, self.addresses
        if layout is None or not addresses:
            return ()
        order = sorted(range(len(addresses)), key=addresses.__getitem__)
        data, missing = read_records(self._target, self._engine, [addresses[at] for at in order], layout.size)
        reasons, threads, now = self.reasons(), {thread.tid: thread for thread in self._target.threads()}, self._now()
        made: list[tuple[int, UserThread]] = []
        for number, at in enumerate(order):
            if number in missing:
                self.is_complete = False
                continue
            one = self._goroutine(layout, memoryview(data)[number * layout.size : (number + 1) * layout.size], reasons, threads, now, trace)
            if one is not None:
                self.structures[one.number] = addresses[at]
                made.append((at, one))
        return [one for _, one in sorted(made, key=lambda pair: pair[0])]

    def _now(self) -> Optional[int]:
        """The monotonic clock of a live process. waitsince is measured by this clock."""
        return time.monotonic_ns() if self._target.live else None

    def _goroutine(
        self,
        layout: _G,
        data: memoryview,
        reasons: Sequence[str],
        threads: Mapping[int, Thread],
        now: Optional[int],
        trace: Callable[[Thread], Iterable[Frame]],
    ) -> Optional[UserThread]:
        def field(name: str, size: int = 8) -> int:
            at = layout.at.get(name)
            return int.from_bytes(data[at : at + size], "little") if at is not None else 0

        state = field("atomicstatus", 4) & ~_SCAN
        self.is_complete = self.is_complete and (state in STATES or state in _WITHOUT_STACK)
        if state not in STATES or not field("goid"):
            return None
        stack = Range(field("stack.lo"), field("stack.hi"))
        running = threads.get(self._thread_of(field("m"))) if state in (_RUNNING, _SYSCALL) else None
        sp, pc = self._position(field, state, stack, running, trace)
        frames = self.unwind(pc, sp, stack)
        reason = field("waitreason", 1)
        since = field("waitsince")
        return UserThread(
            number=field("goid"),
            state=STATES[state],
            reason=reasons[reason] if state in (4, 10) and reason < len(reasons) else "",
            sp=sp,
            pc=pc,
            stack=stack,
            frames=frames,
            creator=self._creator(field("gopc")),
            waiting=max(now - since, 0) if now is not None and since and state == 4 else None,
            thread=running.tid if running is not None else 0,
            is_internal=self._is_internal(field("startpc"), frames),
        )

    def _is_internal(self, start: int, frames: Sequence[NamedFrame]) -> bool:
        """Whether a goroutine that began in this function belongs to the runtime; see
        isSystemGoroutine. The goroutines that run finalizers and cleanups belong to the program
        while they execute its functions."""
        table = self.table_at(start)
        function = table.find(start) if table is not None else None
        if function is None or not function.name.startswith("runtime.") or function.name in _USERS:
            return False
        return function.name not in RUNNERS or all(frame.function.startswith("runtime.") for frame in frames)

    def _position(
        self, read: Callable[[str], int], state: int, stack: Range, running: Optional[Thread], trace: Callable[[Thread], Iterable[Frame]]
    ) -> tuple[int, int]:
        """Return sp and pc of a goroutine. `read` returns a field of the goroutine."""
        if state == _SYSCALL and stack.start <= read("syscallsp") < stack.end:
            return read("syscallsp"), read("syscallpc")
        if running is not None and stack.start <= running.sp < stack.end:
            return running.sp, running.pc
        # The thread executes a signal handler, or code of the runtime, on another stack. sched may
        # be stale: it is set only when the goroutine leaves its stack by itself.
        frames = [frame for frame in trace(running) if stack.start <= frame.sp < stack.end] if running is not None else []
        if not frames:
            return read("sched.sp"), read("sched.pc")
        if frames[1:]:  # the first one may have been interrupted before it saved its link register
            self._links[frames[0].call, frames[0].sp] = frames[1].pc
        return frames[0].sp, frames[0].call

    @cached_property
    def _procid(self) -> Optional[int]:
        """The offset in runtime.m of the kernel's number of the thread."""
        address = self._program.types.find("runtime.m")
        return self._program.types.offset(address, "procid") if address is not None else None

    def _thread_of(self, m: int) -> int:
        """Return the kernel's number of the thread of a runtime.m; 0 if unknown."""
        return (self._memory.word(m + self._procid) or 0) if self._procid is not None and m else 0

    def _creator(self, pc: int) -> Optional[NamedFrame]:
        """Return the frame that contains the go statement."""
        frames = self.name(pc, True) if pc else ()
        return frames[-1] if frames else None

    def table_at(self, pc: int) -> Optional[FunctionTable]:
        """Return the table of the module whose code contains an address."""
        return next((one for one in self.tables if one.module.text.start <= pc < one.module.text.end), None)

    def file_of(self, table: FunctionTable) -> str:
        """Return the base name of the file with these functions: the program, or a plugin."""
        module = self._modules.get(table.module.text.start, self._module)
        return os.path.basename(module.path)

    @cached_property
    def _modules(self) -> Mapping[int, Module]:
        """The files of the function tables, by the start of their code."""
        starts = [table.module.text.start for table in self.tables]
        return {start: one for one in self._target.modules() for start in starts if one.start <= start < one.end}

    def unwind(self, pc: int, sp: int, stack: Range) -> tuple[NamedFrame, ...]:
        """Return the frames of a stack, innermost first."""
        return tuple(frame for one in self.walk(pc, sp, stack) for frame in self.name(one.pc, one.called))

    def describe_stack(self, threads: Sequence[UserThread], address: int) -> str:
        """Return a phrase for an address on the stack of one of these goroutines: "stack of
        goroutine 7 (waiting, chan receive), in main.worker"; "" elsewhere."""
        one = next((one for one in threads if one.stack.start <= address < one.stack.end), None)
        if one is None:
            return ""
        if address < one.sp:
            return f"stack of goroutine {one.number}, not in use"
        frame = ""
        for place in self.walk(one.pc, one.sp, one.stack):
            # Frames of generated functions have no name. Arguments of the function that such a
            # frame calls are stored there.
            frame = next((named.short_name() for named in reversed(self.name(place.pc, place.called))), frame)
            if address < place.end:
                break
        return f"stack of goroutine {one.number} ({describe_state(one)}){f', in {frame}' if frame else ''}"

    @cached_property
    def _links(self) -> dict[tuple[int, int], int]:
        """The link registers of innermost frames, by pc and sp; on machines that have one."""
        name = self._target.arch.link_register
        return {(one.pc, one.sp): one.registers.get(name, 0) for one in self._target.threads()} if name else {}

    def walk(
        self, pc: int, sp: int, stack: Range, read: Optional[Callable[[int], Optional[int]]] = None, most: int = _MAX_FRAMES
    ) -> Iterator[CallFrame]:
        """Yield at most `most` frames of a stack, innermost first. `read` returns the word at an
        address, or None."""
        links, word = self._target.arch.name == AARCH64.name, read or self._memory.word
        called, link = False, self._links.get((pc, sp), 0)
        for _ in range(most):
            place = self._places.get((pc, called)) or self._find_place(pc, called)
            if place is None:
                return
            table, function, depth = place
            end = sp + depth + (0 if links else 8)
            yield CallFrame(pc, called, sp, end, depth, table, function)
            if function.flag & TOP_FRAME or not stack.start <= sp < stack.end or depth < 0:
                return
            injected = function.name in INJECTED
            caller = link if links and not depth and link else word(sp if links else sp + depth)
            link = 0
            if injected and links:
                link, end = word(end) or 0, end + SAVED_LINK
            if not caller:
                return
            sp, pc, called = end, caller, function.name != CALLED_BY_C and not injected

    def _find_place(self, pc: int, called: bool) -> Optional[tuple[FunctionTable, Function, int]]:
        """Return the table that contains the function at `pc`, this function, and the size of its
        frame in bytes; None if one of these is unknown."""
        table = self.table_at(pc)
        function = table.find(pc - called) if table is not None else None
        depth = table.depth(pc) if table is not None else None
        if table is None or function is None or depth is None:
            return None
        self._places[pc, called] = table, function, depth
        return self._places[pc, called]

    def name(self, pc: int, called: bool) -> tuple[NamedFrame, ...]:
        """Return the functions at `pc`, inlined ones first, without those that the compiler
        generated. `called`: `pc` is a return address."""
        key = pc, called
        if key not in self._frames:
            table = self.table_at(pc)
            places = table.places(pc - called) if table is not None else ()
            function = table.find(pc - called) if table is not None else None
            offset = pc - function.entry if function is not None else 0
            shown = [one for one in places if not one.is_wrapper]
            file = self.file_of(table) if table is not None else ""
            self._frames[key] = tuple(NamedFrame(pc, one.function, offset, file, one.file, one.line, one.inlined) for one in shown)
        return self._frames[key]
