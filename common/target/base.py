"""The Target protocol, of cores, live processes, GDB's and LLDB's, and a test's fakes.
Addresses are integers in the target's address space, sizes bytes, ranges half open [start, end)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, Protocol, Union

from findleaks import formatting
from findleaks.target.arch import Arch
from findleaks.value_classes import NamedTuple, dataclass

if TYPE_CHECKING:
    from findleaks.target.control import BreakpointHost, InjectionHost
    from findleaks.target.elf import Table
    from findleaks.target.kernel_references import KernelState
    from findleaks.target.missing import Uncertain
    from findleaks.target.residency.presence import Presence
    from findleaks.target.separate import Alternate

Buffer = Union[bytes, bytearray, memoryview]

PIECE = 64 << 20
"""Bytes of the longest piece of `Target.pieces`: one kernel call on it takes well under 200 ms."""


class Range(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True)
class Region:
    """A mapped range. `name`: a file's path, a label like "[stack]", or "" (anonymous memory)."""

    start: int
    end: int
    readable: bool
    writable: bool
    executable: bool
    name: str = ""
    file_offset: int = 0
    private: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def anonymous(self) -> bool:
        """Whether it is private memory of no file: pages that are not present read as zeros."""
        return self.private and not self.name.startswith("/")

    @property
    def may_hold_data(self) -> bool:
        """Whether the process may have written to this memory although it cannot access it now: it
        is anonymous, or shared memory of no file on a disk."""
        return not (self.readable or self.executable) and (self.anonymous or is_shared_memory(self.name))

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end


_SHARED_MEMORY = ("/dev/zero", "/memfd:", "/SYSV", "/dev/shm/", "/run/shm/", "/anon_hugepage", "/secretmem")


def is_shared_memory(name: str) -> bool:
    """Whether a mapping of this name is shared memory, which is in no file on a disk."""
    return name.startswith(_SHARED_MEMORY)


class Module(NamedTuple):
    """A loaded ELF file. Its own addresses (p_vaddr, st_value) plus `bias` are the target's."""

    path: str
    bias: int
    start: int
    end: int
    build_id: str = ""


class Symbol(NamedTuple):
    """A named address. `size` is 0 where the symbol table gives none."""

    name: str
    address: int
    size: int
    module: str = ""


class SourcePlace(NamedTuple):
    """A function at an address, and where in its source that is. `function`: "" where it is not
    known. `file`: an absolute path of the machine that compiled it, "" where it is not known;
    `line`: 0 where it is not known. `start`: of the function whose code this is, where that begins
    or, if it is in several parts, this one; 0 of an inlined function, or where it is not known."""

    function: str
    file: str
    line: int
    start: int = 0

    def short(self) -> str:
        """The last parts of the path, and the line: "io/parser.c:42"; "" if it is not known."""
        return f"{'/'.join(self.file.rsplit('/', 2)[-2:])}:{self.line}" if self.file and self.line else ""


class SourceLookup(Protocol):
    """What knows the source of code by its debug information: a debugger."""

    def places(self, address: int, build_id: str) -> Sequence[SourcePlace]:
        """The functions at an address, inlined ones first, the innermost first of all; () where
        nothing is known, or the debugger has loaded another file than that of the build-id."""
        ...


class Thread(NamedTuple):
    """A thread at the stop. Its registers' words that it may read again are roots. Vector registers
    are named by part: "xmm3" is the low 128 bits, "ymm3" the next 128, "zmm3" the upper 256."""

    tid: int
    registers: dict[str, int]  # the general ones, under the architecture's own names
    sp: int
    pc: int
    thread_pointer: int  # 0: unknown
    # Every aligned word of the general and the vector registers: also `sp`, `pc`, `thread_pointer`.
    words: Sequence[int] = ()
    names: Sequence[str] = ()  # of the words; "" or no entry: not known


MARGIN = 64 << 10  # bytes
BEGINNING = 4096  # bytes of zeros kept around data: after a header at the end of a page


class Piece(NamedTuple):
    """Bytes of the target in findleaks' own memory: a contiguous memoryview of format 'B'.
    Writable only so that ctypes takes its address without a copy: a write would not reach the
    target, and must not be made."""

    address: int
    data: memoryview


def excluded_warning(ranges: Iterable[Range]) -> str:
    """What a core lacks, though it was in memory (`Target.excluded`)."""
    parts = list(ranges)
    where = formatting.some([f"{start:#x}-{end:#x}" for start, end in parts], 2)
    why = "as the process excluded it from dumps (MADV_DONTDUMP): pointers in it are not seen"
    return f"{formatting.size(sum(end - start for start, end in parts))} of memory is not in the core ({where}), {why}."


class Mapped(Protocol):
    """The memory and the modules of a process: what unwinding a stack needs of a target."""

    arch: Arch

    def regions(self) -> Sequence[Region]:
        """Sorted by address, disjoint."""
        ...

    def modules(self) -> Sequence[Module]: ...

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory; never short."""
        ...

    def word(self, address: int) -> int:
        """The pointer-sized unsigned word at `address`, or UnreadableMemory. It is cached."""
        ...


class Target(Mapped, Protocol):
    """A process image, read only.
    Optional parts have default answers: not known, or no debugger holds the process."""

    description: str  # one line: "core of ./server (pid 4711), 5 threads"
    pid: Optional[int]
    live: bool
    trackable: bool = False  # code can be put into it, from where this target is: `track`
    path: str = ""  # of the core file; "" for a live process
    unread: list[Range]  # writable memory that was mapped and cannot be read
    # Of `unread`: what had pages, and the process excluded from dumps (MADV_DONTDUMP).
    excluded: Sequence[Range] = ()
    # Of a core: ranges that may have held data that it lacks, ascending and disjoint.
    uncertain: Sequence[Uncertain] = ()
    truncated: bool = False  # the core file ends before its headers say
    unknown_registers: str = ""  # "the vector registers", where the words of threads lack them
    lacks: str = ""  # why nothing can be said of the heap, and what has it; "": it is there
    warnings: list[str]  # of unread memory, a truncated core, files that do not match
    tagged: bool = False  # pointers may have tags in their top byte; see tags.py
    crashed: int = 0  # tid of the thread ended by its own fault or abort(); 0: none, or not known
    fault_address: Optional[int] = None  # that `crashed` accessed; None: none, or not known
    signal: int = 0  # of a core: what made the process dump it; 0: none, or not known
    exe_path: str = ""  # the program's path when it ran; "" where that is not known
    called: str = ""  # the name that it was called by; "" where that is not known
    # When the process was stopped and read, in seconds since 1970; None: not known. Of a core: only
    # where its own notes say so.
    taken_at: Optional[float] = None
    # When the process started, in clock ticks after the system's boot (field 22 of /proc/PID/stat),
    # which distinguishes processes that had one id; None: not known.
    start_time: Optional[int] = None
    # The debugger that has loaded the process: it may know sources that no file here has.
    debugger: Optional[SourceLookup] = None

    def read_code(self, address: int, size: int) -> bytes:
        """Like `read`, but without the breakpoints that a debugger has inserted."""
        return self.read(address, size)

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The parts of [start, end) that can be read, ascending, each at most PIECE long."""
        ...

    def nonzero(self, start: int, end: int, margin: int = MARGIN) -> Iterator[Range]:
        """The parts of [start, end) that may hold anything but zeros, ascending, for searches.
        Leaves out what a core lacks, and long holes of its file (zeros), without reading bytes.
        `margin` bytes of zeros around data are kept: structures start or end so."""
        return iter((Range(start, end),))

    def resident(self, start: int, end: int) -> Optional[int]:
        """Bytes of [start, end) that were in memory or in swap at the stop; None: not known.
        Of a live process: of private anonymous memory only. Of a core: by findleaks' own note, or
        by the holes that the kernel leaves for pages never touched, or given back, which copied and
        compressed cores lack."""
        return None

    @property
    def protected(self) -> Sequence[Range]:
        """Parts of `Region.may_hold_data` that have data, ascending and disjoint: memory that the
        process protected (PROT_NONE) after it had written to it."""
        return ()

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        """Residency page by page, for every mapping, at one moment; None where it is not known.
        Of a live process: from pagemap and smaps; of a core: from findleaks' own note, or from its
        holes. `progress` is called at least every 200 ms with the part that is done (0: unknown),
        and may raise."""
        return None

    @property
    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector by AT_ type; {} where it is not known."""
        return {}

    def symbol_tables(self, module: Module) -> Sequence[Table]:
        """The symbol tables of a module; [] where there are none."""
        return []

    def symbol(self, name: str, module: str = "") -> Optional[Symbol]:
        """The symbol of exactly this (mangled) name, from .symtab or .dynsym of any module, or only
        of those whose basename starts with `module`."""
        ...

    def symbols_starting(self, prefix: str) -> Sequence[Symbol]:
        """All symbols whose (mangled) name starts with `prefix`: families, such as v8dbg_…"""
        ...

    def symbolize(self, address: int) -> Optional[Symbol]:
        """The symbol that covers `address` (demangled name), or None."""
        ...

    def thread_locals(self, module: Module) -> Sequence[Symbol]:
        """A module's thread-local variables, by offset into its block of a thread's storage."""
        return []

    def debug_data(self, module: Module) -> Sequence[Buffer]:
        """The files that may have a module's debug information: its own, where proven to be the one
        that was loaded, and the separate debug file of its build-id."""
        return []

    def alternate_data(self, module: Module, wanted: Alternate) -> Optional[Buffer]:
        """The supplementary file (made by dwz) that a debug file of this module names."""
        return None

    def add_debug_file(self, module: Module, path: str) -> bool:
        """Use a file of this machine as a module's debug file; False if it is another's."""
        return False

    def threads(self) -> Sequence[Thread]: ...

    def thread_names(self) -> Mapping[int, str]:
        """Names by tid (prctl PR_SET_NAME), of this machine's processes, and of cores that
        findleaks wrote: others have none."""
        return {}

    def kernel_state(self) -> Optional[KernelState]:
        """Pointers that only the kernel keeps: of this machine's processes, and of cores that
        findleaks wrote. None where nothing is known of them."""
        return None

    def run_on(self, seconds: float) -> bool:
        """Let the process run for so many seconds, and stop it: what was read before is invalid.
        False, and nothing is done, for a core, or where findleaks may not let the process run."""
        return False

    def breakpoint_host(self) -> Optional[BreakpointHost]:
        """The process, which a debugger here can run to breakpoints; None where none holds it."""
        return None

    def injection_host(self) -> Optional[InjectionHost]:
        """The process, which a debugger can change and run; None where no such one holds it."""
        return None

    def interrupted(self) -> bool:
        """True once the user asked to stop. Polled at least every 200 ms of work."""
        return False

    def close(self) -> None: ...
