"""Group threads by identical stacks, and name the functions in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional, Protocol, TypeVar

from findleaks.errors import Interrupted
from findleaks.target.base import SourcePlace, Symbol, Target
from findleaks.unwind.frame_locks import FrameLock, PlacedLock
from findleaks.unwind.frames import Frame, FrameRegisters, Trace, Unwinder
from findleaks.unwind.managed_frames import NO_FRAMES, ManagedFrames, NativeStack, Placed, place_frames
from findleaks.unwind.mutex_waits import describe_lock, find_mutex_waits
from findleaks.value_classes import NamedTuple, dataclass, field
from findleaks.wildcards import matches

if TYPE_CHECKING:
    from findleaks.debuginfo.sources import Sources
    from findleaks.unwind.code_tables import CodeTable


class NamedFrame(NamedTuple):
    """A frame with its names. `function`: "" if no symbol covers the address; `offset`: from the
    function, or from the module's address 0; `module`: a base name, "" for code without a file.
    `file`, `line`: source position, or "", 0. An `inlined` function is part of the next frame, and
    has its address and offset. `kind`: the language of a managed function ("Python", "Java"); ""
    for machine code. Frames of managed functions have no address. `is_async`: the function waits
    for the function of the frame before it, and has no frame on the stack. `reason`: why the name
    or the line is unknown; "" if both are known, or if no reason is known. `locks`: the locks that
    a managed function holds or waits for."""

    address: int
    function: str
    offset: int
    module: str
    file: str = ""
    line: int = 0
    inlined: bool = False
    kind: str = ""
    is_async: bool = False
    reason: str = ""
    locks: tuple[FrameLock, ...] = ()

    def label(self) -> str:
        """Return a short label: "uv_run+0x164", "list_add (inlined)", "libm.so.6+0x1234",
        "0x7f…"."""
        if self.inlined:
            return f"{self.function or '?'} (inlined)"
        if self.kind:
            return f"{'async ' if self.is_async else ''}{self.function or f'unknown {self.kind} function'}"
        if self.function:
            return f"{self.function}+{self.offset:#x}" if self.offset else self.function
        return f"{self.module}+{self.offset:#x}" if self.module else hex(self.address)

    def short_name(self) -> str:
        """Return the function without parameters: "node::Start"; the label if it has no name.
        Parentheses in Ruby's labels have no parameters: "block (2 levels) in run"."""
        if self.kind == "Ruby" or not self.function:
            return self.label()
        return without_parameters(self.function)

    def place(self) -> str:
        """Return the end of the source path, and the line: "io/parser.c:42"; "" if unknown. If only
        the file is known, `reason` explains why."""
        known = SourcePlace(self.function, self.file, self.line or 1).short()
        return known if self.line else known.rpartition(":")[0] if self.reason else ""


@dataclass(frozen=True)
class Stack:
    """A stack and the threads that have it; `end` as in frames.Trace. `locks`: the locks of each
    thread. Threads with the same stack may lock different objects of the same type."""

    frames: tuple[NamedFrame, ...]
    end: str
    threads: list[int]
    locks: list[tuple[PlacedLock, ...]] = field(default_factory=list)


class Namer:
    """Names frames, and caches the names by address. `sources` has lines and inlined functions. The
    unwinder's tables name the code that they describe."""

    def __init__(self, target: Target, unwinder: Unwinder, sources: Optional[Sources] = None) -> None:
        self._target, self._unwinder, self._sources = target, unwinder, sources
        self._known: dict[int, tuple[NamedFrame, ...]] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """Return why lines or names are missing, one line each."""
        return self._sources.warnings if self._sources is not None else ()

    def name(self, frame: Frame) -> NamedFrame:
        """Return the named frame, without functions inlined in it."""
        return self.names(frame)[-1]

    def names(self, frame: Frame) -> tuple[NamedFrame, ...]:
        """Return the functions inlined at the frame's pc, innermost first, and then the frame
        itself."""
        if frame.call not in self._known:
            self._known[frame.call] = self._name_frame(frame)
        return self._known[frame.call]

    def _name_frame(self, frame: Frame) -> tuple[NamedFrame, ...]:
        described = next(filter(None, (table.names(frame.pc, frame.call) for table in self._unwinder.code_tables)), None)
        if described is not None:
            return tuple(described)
        # Look up sources first: this may load a file with more symbols.
        places = self._sources.at(frame.call) if self._sources is not None else ()
        module = self._unwinder.module(frame.call)
        path = module.path.rsplit("/", 1)[-1] if module is not None else ""
        *inlined, own = places or (SourcePlace("", "", 0),)
        name, base = own_function(self._target.symbolize(frame.call), own)
        offset = frame.pc - (base or (module.bias if module is not None else 0))
        made = [NamedFrame(frame.pc, one.function, offset, path, one.file, one.line, True) for one in inlined]
        return (*made, NamedFrame(frame.pc, name, offset, path, own.file, own.line))


def own_function(symbol: Optional[Symbol], place: SourcePlace) -> tuple[str, int]:
    """Return the name and start of the function whose code is at a source position; "" and 0 if
    unknown. Uses the symbol at this position. If there is no symbol, or if it has no size and
    begins earlier, uses debug information."""
    if place.function and place.start and (symbol is None or (not symbol.size and symbol.address < place.start)):
        return place.function, place.start
    return (symbol.name, symbol.address) if symbol is not None else ("", 0)


def group_threads(
    target: Target, sources: Optional[Sources] = None, readers: Sequence[ManagedFrames] = (), tables: Sequence[CodeTable] = ()
) -> list[Stack]:
    """Return the stacks, sorted by descending number of threads, then in the order of threads.
    Raises Interrupted on Ctrl-C.

    `readers` read frames of managed functions. Threads with different managed functions have
    different stacks. `tables` describe code without call frame information."""
    unwinder = Unwinder(target, tables, [reader.step for reader in readers])
    namer = Namer(target, unwinder, sources)
    waits = {one.thread: one for one in find_mutex_waits(target)}
    groups: dict[tuple[tuple[NamedFrame, ...], str], Stack] = {}
    for thread in target.threads():
        if target.is_interrupted():
            raise Interrupted
        registers: list[FrameRegisters] = []
        trace = unwinder.trace_with_registers(thread, registers)
        placed = place_frames(NativeStack(thread, trace, registers), readers) if readers else NO_FRAMES
        frames = tuple(named_frames(namer, trace, placed))
        key = frames, trace.end
        group = groups.setdefault(key, Stack(frames, trace.end, []))
        group.threads.append(thread.tid)
        locks = [PlacedLock(at, lock) for at, frame in enumerate(frames) for lock in frame.locks]
        if thread.tid in waits:
            locks.insert(0, PlacedLock(_find_lock_function(frames), describe_lock(target, waits[thread.tid])))
        group.locks.append(tuple(locks))
    return sorted(groups.values(), key=lambda stack: -len(stack.threads))


def _find_lock_function(frames: Sequence[NamedFrame]) -> int:
    """Return the index of the frame of pthread_mutex_lock() or a similar function; 0 if it has no
    name."""
    return next((at for at, frame in enumerate(frames) if frame.function.lstrip("_").startswith("pthread_")), 0)


def named_frames(namer: Namer, trace: Trace, placed: Placed) -> Iterator[NamedFrame]:
    """Yield the frames of a thread, innermost first, with managed frames at their positions."""
    for at, frame in enumerate(trace.frames):
        yield from placed.frames.get(at, ())
        if at not in placed.replaced:
            yield from namer.names(frame)
    yield from placed.frames.get(len(trace.frames), ())


_KEPT = ("(anonymous namespace)", "(lambda")


def without_parameters(function: str) -> str:
    """Strip parameters and brackets: "node::Start(int, char**)" becomes "node::Start". The receiver
    of a Go method and the parameters of a lambda are kept: "http.(*conn).serve",
    "main::{lambda(int)#1}::operator()"."""
    depth = 0
    for at, letter in enumerate(function):
        before = function[:at]
        if letter == "{" or (letter == "<" and not before.endswith(("operator", "operator<"))):
            depth += 1
        elif letter in ">}" and depth and not before.endswith("-"):
            depth -= 1
        elif letter == "(" and at and not depth and not function.startswith(_KEPT, at) and not before.endswith(("operator", ".")):
            return before
    return function


def matches_function(frame: NamedFrame, pattern: str) -> bool:
    """Whether `pattern` (with * and ?) matches this function's whole name, its name without
    parameters, or the last part of that (MakeCallback for node::MakeCallback)."""
    if not frame.function:
        return False
    plain = without_parameters(frame.function)
    known = (frame.function, plain, plain.rsplit("." if frame.kind else "::", 1)[-1])
    return any(matches(pattern, name) for name in known) if any(c in pattern for c in "*?") else pattern in known


class _WithFrames(Protocol):
    @property
    def frames(self) -> Sequence[NamedFrame]: ...


_Stack = TypeVar("_Stack", bound=_WithFrames)


def filter_stacks(found: Iterable[_Stack], function: str, module: str, not_under: Sequence[str]) -> list[_Stack]:
    """Select stacks with a frame of `function` and one of `module` ("": any), and none of
    `not_under`."""
    return [
        stack
        for stack in found
        if (not function or any(matches_function(frame, function) for frame in stack.frames))
        and (not module or any(frame.module == module or matches(module, frame.module) for frame in stack.frames))
        and not any(matches_function(frame, pattern) for pattern in not_under for frame in stack.frames)
    ]
