"""Dead words of threads: values in registers, red zones, and interrupted frames that no code reads
again.

Dead words are not roots. Only the code shows which words are dead, and reading code takes time
(`unread`). So `doubtful` first finds the words that may be dead and point into blocks in use. If
other roots reach all these blocks by start references, no block's kind depends on whether the words
are dead, and the code need not be read."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.errors import Interrupted as Stopped
from findleaks.errors import UnreadableMemory
from findleaks.libc.stacks import thread_stacks
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Target, Thread
from findleaks.target.layout import VDSO
from findleaks.target.signal_words import SIGRETURN, saved_words
from findleaks.value_classes import NamedTuple

DEEPEST = 1 << 20  # bytes of a stack that are searched for signal frames
_LONGEST_CHAIN = 4096  # maximum number of frames of a chain
NEAREST = 512  # bytes above a stack pointer that are searched for dead words of frames

_CODE = ("libc.", "libc-", "libpthread", "ld-musl")


if TYPE_CHECKING:
    from findleaks.unwind.live import Interrupted, LivenessReader


class Place(NamedTuple):
    """Memory that no code reads again."""

    start: int
    end: int
    what: str  # "below the stack pointer of thread 2, not read again"


class Suspects(NamedTuple):
    """Words of one thread that may be dead and point into blocks in use."""

    values: set[int]  # values of registers and of the red zone
    slots: dict[int, int]  # values of words in its innermost frames, by address


class Doubtful(NamedTuple):
    """Words that may be dead and point into blocks in use."""

    # threads with such words, and whether a signal interrupted a frame
    threads: list[tuple[Thread, bool]]
    words: list[int]  # the words, ascending, without repetition; some may point into no block
    # the result if all these words were dead; None if only code shows where they are
    all_dead: Unread | None
    slots: dict[int, dict[int, int]]  # `Suspects.slots` by tid
    registers: bool  # whether some of the words are in registers or red zones


class Unread:
    """Dead words of all threads."""

    def __init__(self) -> None:
        self.registers: dict[int, frozenset[str]] = {}  # tid -> names of dead registers
        self.places: list[Place] = []  # sorted and disjoint
        self.warning = ""  # why all words count as live; "" if they do not
        # Cached by the names of words (identity of the tuple) and the words that are read again.
        self.known: dict[tuple[int, int], frozenset[str]] = {}
        # Cached by the names of words and the names of the dead ones: whether each word is read
        # again.
        self._read: dict[tuple[int, frozenset[str]], list[bool]] = {}

    def ranges(self) -> list[Range]:
        return [Range(place.start, place.end) for place in self.places]

    def words(self, thread: Thread) -> Iterator[tuple[str, int, bool]]:
        """Yield (register, value, whether live) of a thread's words. The register is "" if
        unknown."""
        dead = self.registers.get(thread.tid, frozenset())
        if not thread.names:
            yield from ((name, value, True) for name, value in thread.registers.items())
            known = set(thread.registers.values())
            yield from (("", value, True) for value in thread.words if value not in known)
            return
        for at, value in enumerate(thread.words):
            name = thread.names[at] if at < len(thread.names) else ""
            yield name, value, name not in dead

    def live(self, thread: Thread) -> Iterable[int]:
        """Return the live words of a thread's registers."""
        dead = self.registers.get(thread.tid)
        if dead is None:
            return thread.words or thread.registers.values()
        if len(thread.names) < len(thread.words):
            return (value for _, value, read in self.words(thread) if read)
        # Most threads have words with the same names, and the same of these words are dead.
        key = id(thread.names), dead
        read = self._read.get(key)
        if read is None:
            read = self._read[key] = [name not in dead for name in thread.names]
        return compress(thread.words, read)

    def what(self, address: int) -> str:
        """Describe the dead words at an address; "" if there are none."""
        at = bisect_right(self.places, (address, 1 << 64, "")) - 1
        return self.places[at].what if at >= 0 and self.places[at].start <= address < self.places[at].end else ""


def doubtful(target: Target, engine: Engine, blocks: Blocks) -> Doubtful:
    """Find the threads with words that may be dead, without reading code."""
    if not target.arch.kept_registers or not len(blocks):
        return Doubtful([], [], Unread(), {}, False)
    threads = list(target.threads())
    restorers = _restorers(target)
    found = []
    words: set[int] = set()
    slots: dict[int, dict[int, int]] = {}
    registers = False
    for thread, suspects in zip(threads, _suspects(target, blocks, threads)):
        signals = _is_interrupted(target, engine, thread, restorers)
        if suspects.values or suspects.slots or signals:
            found.append((thread, signals))
            words |= suspects.values | set(suspects.slots.values())
            registers = registers or bool(suspects.values) or signals
            slots[thread.tid] = suspects.slots
    plain = not any(signals for _, signals in found)
    all_dead = _all_dead(target, [thread for thread, _ in found], slots) if plain else None
    return Doubtful(found, sorted(words), all_dead, slots, registers)


def _all_dead(target: Target, threads: Iterable[Thread], slots: Mapping[int, Mapping[int, int]]) -> Unread:
    """Return the result that `unread` would have if all words of these threads that may be dead
    were dead."""
    found = Unread()
    for thread in threads:
        key = id(thread.names), 0
        if key not in found.known:
            found.known[key] = frozenset(name for name in thread.names if name and name not in target.arch.kept_registers)
        found.registers[thread.tid] = found.known[key]
        if target.arch.red_zone and thread.sp % target.arch.word == 0:
            found.places.append(Place(*_red_zone(target, thread), "below the stack pointer"))
        found.places += [Place(address, address + target.arch.word, "in a frame") for address in slots.get(thread.tid, ())]
    found.places.sort()
    return found


def unread(target: Target, blocks: Blocks, doubtful: Doubtful) -> Unread:
    """Find the dead words of these threads. Raises errors.Interrupted."""
    found = Unread()
    if not doubtful.threads:
        return found
    # The import takes 50 ms.
    from findleaks.disasm.capstone_loader import CAPSTONE_MISSING, load_capstone

    capstone = load_capstone()
    if capstone is None and not doubtful.registers:
        return found
    if capstone is None:
        found.warning = (
            f"every register counts as still in use, so stale values may make leaked blocks appear reachable: {CAPSTONE_MISSING}"
        )
        return found
    from findleaks.unwind.live import LivenessReader

    reader = LivenessReader(target, capstone)
    numbers = {thread.tid: number for number, thread in enumerate(target.threads(), 1)}
    for thread, signals in doubtful.threads:
        if target.is_interrupted():
            raise Stopped
        who = f"thread {numbers[thread.tid]} (tid {thread.tid})"
        _judge(found, reader, target, blocks, thread, who, signals)
        slots = doubtful.slots.get(thread.tid)
        dead = reader.dead_slots(thread, slots) if slots else []
        found.places += [Place(at, at + target.arch.word, f"in a frame of {who}, not read again") for at in dead]
    found.places.sort()
    if reader.exhausted:
        found.warning = (
            "threads run at so many places that not all of their code was read: stale registers may make leaked blocks appear reachable"
        )
    return found


def _judge(found: Unread, reader: LivenessReader, target: Target, blocks: Blocks, thread: Thread, who: str, signals: bool) -> None:
    """Add the dead words of one thread."""
    from findleaks.unwind.live import zone_bytes

    kept, mask_of = target.arch.kept_registers, reader.mask_of
    awaited = reader.live_words(thread, signals)
    key = id(thread.names), awaited.live
    dead = found.known.get(key)
    if dead is None:
        names = {name for name in thread.names if name and name not in kept}
        dead = found.known[key] = frozenset(name for name in names if (mask := mask_of(name)) and not mask & awaited.live)
    if dead:
        found.registers[thread.tid] = dead

    def put(start: int, end: int, what: str) -> None:
        if start % target.arch.word == 0 and start < end and blocks.find(start) < 0 and blocks.find(end - 1) < 0:
            found.places.append(Place(start, end, what))

    for sp, live in [(thread.sp, awaited.live), *((one.sp, one.live) for one in awaited.interrupted)]:
        within = f"{who}'s interrupted function" if sp != thread.sp else who
        for start, end in zone_bytes(live) if target.arch.red_zone else ():  # words
            put(sp + start, sp + end, f"below the stack pointer of {within}, not read again")
    for one in awaited.interrupted:
        for start, end in _alternate(target, one, thread):
            put(start & -target.arch.word, end, f"dead stack of {who}, whose signal handler runs on a separate stack")
        for name, address in saved_words(target, one.context):
            if name and name not in kept and (mask := mask_of(name)) and not mask & one.live:
                put(address, address + 8, f"{name} of {who}, saved at a signal, not read again")


def _alternate(target: Target, one: Interrupted, thread: Thread) -> Iterator[Range]:
    """Yield the dead part of the alternate stack on which a handler runs, and of the stack that it
    interrupted. uc_stack in the handler's struct ucontext has address, flags and size of the
    alternate stack."""
    try:
        low, _, size = target.arch.unpack(target.read(one.context + 16, 24))
    except UnreadableMemory:
        return
    if not (low <= thread.sp < low + size <= low + (1 << 30)) or low <= one.sp < low + size:
        return
    yield Range(low, thread.sp - target.arch.red_zone)
    stack = thread_stacks(target).get(thread.tid)
    if stack is None:
        mains = (region for region in target.regions() if region.name == "[stack]" and one.sp in region)
        stack = next((Range(region.start, region.end) for region in mains), None)
    if stack is not None and stack.start < one.sp - target.arch.red_zone < stack.end:
        yield Range(stack.start, one.sp - target.arch.red_zone)


def _suspects(target: Target, blocks: Blocks, threads: Sequence[Thread]) -> Iterator[Suspects]:
    """Yield the suspects of each thread.

    `values` are the words of its red zone, and of registers that may be dead, with values between
    the lowest and the highest block. They are returned only if one of them points to a block in
    use. `slots` are words of its innermost frames that point to a block in use."""
    low = blocks.address(0)
    high = blocks.address(len(blocks) - 1) + blocks.size(len(blocks) - 1)
    kept = frozenset(target.arch.kept_registers)
    for thread in threads:
        values = {value for name, value in zip(thread.names, thread.words) if low <= value <= high and name and name not in kept}
        for piece in target.pieces(*_red_zone(target, thread)):
            aligned = piece.data[-piece.address % target.arch.word :]
            values.update(value for value in target.arch.unpack(bytes(aligned)) if low <= value <= high)
        indices, _ = blocks.find_all(array("Q", values)) if values else ((), ())
        hit = any(index != NO_BLOCK and blocks.state(index) == State.IN_USE for index in indices)
        yield Suspects(values if hit else set(), _slots(target, blocks, thread, Range(low, high)))


def _slots(target: Target, blocks: Blocks, thread: Thread, heaps: Range) -> dict[int, int]:
    """Return {address: value} of the words right above the stack pointer that point to blocks in
    use.

    Only x86-64 is supported, because frames of other machines are not analysed. If the stack itself
    is in a block, nothing is returned."""
    word = target.arch.word
    found: dict[int, int] = {}
    if target.arch.name != X86_64.name or thread.sp % word or blocks.find(thread.sp) >= 0:
        return {}
    for piece in target.pieces(thread.sp, thread.sp + NEAREST):
        values = target.arch.unpack(bytes(piece.data[: len(piece.data) & -word]))
        found.update((piece.address + word * at, value) for at, value in enumerate(values) if heaps.start <= value <= heaps.end)
    indices, _ = blocks.find_all(array("Q", found.values())) if found else ((), ())
    used = [index != NO_BLOCK and blocks.state(index) == State.IN_USE for index in indices]
    return dict(compress(found.items(), used))


def _red_zone(target: Target, thread: Thread) -> Range:
    """Return the range of the thread's red zone."""
    return Range(max(0, thread.sp - target.arch.red_zone), thread.sp)


def _restorers(target: Target) -> list[int]:
    """Return the addresses to which signal handlers return. They are in libc or a static program,
    and on some machines in the kernel's vDSO."""
    modules = target.modules()
    chosen = [m for m in modules if m.path.rsplit("/", 1)[-1].startswith(_CODE)] or list(modules[:1])
    codes = [code for code, _ in target.arch.signal_returns] or [SIGRETURN]
    kernels = VDSO if target.arch.signal_returns else None
    found = []
    for region in target.regions():
        if region.executable and (region.name == kernels or any(m.start <= region.start < m.end for m in chosen)):
            for piece in target.pieces(region.start, region.end):
                found += [piece.address + match.start() for code in codes for match in re.finditer(re.escape(code), piece.data)]
    return found


def _returns_to(target: Target, thread: Thread, wanted: set[int]) -> bool:
    """Return whether the thread's link register, or a return address that a function in the chain
    of frame pointers saved, is one of these addresses. It may be signed (pointer authentication),
    in bits above those of addresses."""
    arch = target.arch
    returns, frame = thread.registers.get(arch.link_register, 0), thread.registers.get(arch.frame_pointer, 0)
    for _ in range(_LONGEST_CHAIN):
        if returns & arch.top - 1 in wanted:
            return True
        try:
            above, returns = arch.unpack(target.read(frame + (arch.frame_record or 0), 2 * arch.word))
        except UnreadableMemory:
            return False
        if above <= frame:
            return False
        frame = above
    return False


def _is_interrupted(target: Target, engine: Engine, thread: Thread, restorers: Sequence[int]) -> bool:
    """Whether a signal handler's return address is on the thread's stack."""
    if not restorers:
        return False
    end = thread.sp + DEEPEST
    if thread.sp < thread.thread_pointer < end:
        end = thread.thread_pointer
    wanted = set(restorers)
    if target.arch.link_register and _returns_to(target, thread, wanted):
        return True
    for piece in target.pieces(thread.sp & -target.arch.word, end):
        for address in engine.search(piece, min(restorers), max(restorers) + 1):
            at = address - piece.address
            if int.from_bytes(piece.data[at : at + 8], target.arch.byteorder) in wanted:
                return True
    return False
