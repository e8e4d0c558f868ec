"""The Target protocol, implemented by cores, live processes, GDB, LLDB and test fakes.
Addresses are integers in the target's address space, sizes are bytes, ranges half open [start,
end)."""

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
"""Maximum size of a piece of `Target.pieces`, in bytes. One system call on a piece takes well under
200 ms."""


class Range(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True)
class Region:
    """A mapped range. `name`: path of the file, a label such as "[stack]", or "" (anonymous
    memory)."""

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
        """Whether this is private memory without a file. Its missing pages read as zeros."""
        return self.private and (not self.name.startswith("/") or self.has_huge_pages)

    @property
    def has_huge_pages(self) -> bool:
        """Whether the process mapped this memory with MAP_ANONYMOUS and MAP_HUGETLB. The kernel
        never merges such mappings."""
        return self.name.startswith(HUGE)

    @property
    def is_shared_memory(self) -> bool:
        """Whether this is shared memory that is not in a file on disk. Cores do not show whether
        huge pages are private; they count as private, because the kernel omits shared ones from
        cores by default (core(5), coredump_filter)."""
        return is_shared_memory(self.name) and not (self.private and self.has_huge_pages)

    @property
    def may_hold_data(self) -> bool:
        """Whether the process may have written to this memory before it lost access to it: the
        memory is anonymous, or is shared memory that is not in a file on disk."""
        return not (self.readable or self.executable) and (self.anonymous or is_shared_memory(self.name))

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end


HUGE = "/anon_hugepage"
"""The start of the name that the kernel gives to mappings with MAP_ANONYMOUS and MAP_HUGETLB
(hugetlb_file_setup in fs/hugetlbfs/inode.c)."""

MEMFD = "/memfd:"
"""The beginning of the names of memfds: "/memfd:NAME (deleted)"."""

_SHARED_MEMORY = ("/dev/zero", MEMFD, "/SYSV", "/dev/shm/", "/run/shm/", HUGE, "/secretmem")
_ZEROS = "/dev/zero"


def anonymous_name(name: str) -> str:
    """Return the name of a private mapping: "" for /dev/zero, whose private pages are anonymous.
    The name of shared anonymous memory is different, "/dev/zero (deleted)"."""
    return "" if name == _ZEROS else name


def is_shared_memory(name: str) -> bool:
    """Whether a mapping of this name may be shared memory that is not in a file on disk. Huge pages
    may also be private: see Region.is_shared_memory."""
    return name.startswith(_SHARED_MEMORY)


class Module(NamedTuple):
    """A loaded ELF file. To get an address of the target, add `bias` to an address of the file
    (p_vaddr, st_value)."""

    path: str
    bias: int
    start: int
    end: int
    build_id: str = ""


class Symbol(NamedTuple):
    """A named address. `size` is 0 if the symbol table gives no size."""

    name: str
    address: int
    size: int
    module: str = ""


class SourcePlace(NamedTuple):
    """A function at an address, and its source line.
    `function`: "" if unknown. `file`: absolute path on the machine that compiled it; "" if unknown.
    `line`: 0 if unknown. `start`: start address of the function, or of the part of it that holds
    the address; 0 for inlined functions, or if unknown."""

    function: str
    file: str
    line: int
    start: int = 0

    def short(self) -> str:
        """Return the end of the path and the line, as in "io/parser.c:42"; "" if unknown."""
        return f"{'/'.join(self.file.rsplit('/', 2)[-2:])}:{self.line}" if self.file and self.line else ""


class SourceLookup(Protocol):
    """A debugger that finds source lines with its own debug information."""

    def places(self, address: int, build_id: str) -> Sequence[SourcePlace]:
        """Return the functions at an address: inlined ones first, innermost first. () if nothing is
        known, or if the debugger loaded a file with another build-id."""
        ...


class Thread(NamedTuple):
    """A thread at the stop. Its registers are roots, except those that its code overwrites before
    it reads them.
    Vector registers are named by part: "xmm3" is the low 128 bits, "ymm3" the next 128, "zmm3" the
    upper 256."""

    tid: int
    registers: dict[str, int]  # general registers, by the architecture's names
    sp: int
    pc: int
    thread_pointer: int  # 0: unknown
    # Every aligned word of the general and vector registers, including `sp`, `pc`,
    # `thread_pointer`.
    words: Sequence[int] = ()
    names: Sequence[str] = ()  # register of each word, by name; "" or no entry: unknown


def order_threads(threads: Iterable[Thread], pid: Optional[int]) -> list[Thread]:
    """Return the threads in the order of their numbers: the main thread, then the others by id.
    The kernel begins with small ids again after the largest one, so that the main thread of a
    process may have a larger id than its other threads."""
    return sorted(threads, key=lambda thread: (thread.tid != pid, thread.tid))


MARGIN = 64 << 10  # bytes
BEGINNING = 4096  # bytes of zeros kept after data: a page may end with a header of mostly zeros


class Piece(NamedTuple):
    """Bytes of the target in findleaks' memory: a contiguous memoryview of format 'B'. It is
    writable only so that ctypes can take its address without a copy. Never write to it: this does
    not change the target."""

    address: int
    data: memoryview


def excluded_warning(ranges: Iterable[Range]) -> str:
    """Format the warning about memory that was excluded from the core (`Target.excluded`)."""
    parts = list(ranges)
    where = formatting.some([f"{start:#x}-{end:#x}" for start, end in parts], 2)
    why = "because the process excluded it from dumps (MADV_DONTDUMP): pointers in it are not seen"
    return f"{formatting.size(sum(end - start for start, end in parts))} of memory is not in the core ({where}), {why}."


class MappedMemory(Protocol):
    """The memory and modules of a process: the part of Target that stack unwinding needs."""

    arch: Arch

    def regions(self) -> Sequence[Region]:
        """Return the regions, sorted by address and disjoint."""
        ...

    def modules(self) -> Sequence[Module]: ...

    def read(self, address: int, size: int) -> bytes:
        """Return exactly `size` bytes, never fewer.
        Raises UnreadableMemory."""
        ...

    def word(self, address: int) -> int:
        """Return the unsigned, pointer-sized word at `address` (cached).
        Raises UnreadableMemory."""
        ...


class Target(MappedMemory, Protocol):
    """A process image, read only.
    The defaults of optional members mean "not known", or "no debugger holds the process"."""

    description: str  # one line: "core of ./server (pid 4711), 5 threads"
    pid: Optional[int]
    live: bool
    trackable: bool = False  # `track` can inject code into the process
    path: str = ""  # path of the core file; "" for a live process
    unread: list[Range]  # writable memory that was mapped and cannot be read
    # Part of `unread`: memory that had pages, but was excluded from dumps (MADV_DONTDUMP).
    excluded: Sequence[Range] = ()
    # Cores only: ranges that may have held data that the core lacks, ascending and disjoint.
    uncertain: Sequence[Uncertain] = ()
    truncated: bool = False  # the core file is shorter than stated by its headers
    unknown_registers: str = ""  # "the vector registers" if `Thread.words` lack these; "": none
    lacks: str = ""  # why the heap cannot be analysed, and what to use instead; "" if it can be
    warnings: list[str]  # about unread memory, a truncated core, files that do not match
    tagged: bool = False  # pointers may have tags in their top byte; see tags.py
    crashed: int = 0  # tid of the thread ended by its own fault or abort(); 0: none, or not known
    fault_address: Optional[int] = None  # address that `crashed` accessed; None: none, or not known
    fault_code: int = 0  # si_code of the signal of `crashed`; 0: none, or not known
    # pid of the process that sent `signal`; -1: a process outside of the PID namespace; 0: none, or
    # not known
    sender: int = 0
    refused_call: int = -1  # system call that a SIGSYS reports as refused; -1: none, or not known
    signal: int = 0  # of a core: signal that made the kernel dump it; 0: none, or not known
    # Of a core without NT_SIGINFO: tid of the first thread, which got the signal; else 0
    first_thread: int = 0
    exe_path: str = ""  # the program's path when the process ran; "" if not known
    called: str = ""  # the name by which the program was called; "" if not known
    # Time at which the process was stopped and read, in seconds since 1970; None: not known. For a
    # core, it is known only if findleaks wrote the core.
    taken_at: Optional[float] = None
    # Start time of the process in clock ticks after boot (field 22 of /proc/PID/stat). It
    # distinguishes processes that reused a pid. None: unknown.
    start_time: Optional[int] = None
    # The debugger that loaded the process. It may find sources that findleaks does not find.
    debugger: Optional[SourceLookup] = None

    def read_code(self, address: int, size: int) -> bytes:
        """Like `read`, but with the original bytes in place of the debugger's breakpoints."""
        return self.read(address, size)

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the readable parts of [start, end), ascending, each at most PIECE bytes."""
        ...

    def nonzero(self, start: int, end: int, margin: int = MARGIN) -> Iterator[Range]:
        """Yield the parts of [start, end) that may be nonzero, ascending, for searches.
        Omits memory that a core lacks, and long holes of the core file, which are zeros, without
        reading them. Keeps `margin` bytes of zeros around data, because structures may start or end
        with zeros."""
        return iter((Range(start, end),))

    def resident(self, start: int, end: int) -> Optional[int]:
        """Return how many bytes of [start, end) were in memory or in swap; None: unknown.
        Live processes: private anonymous memory only. Cores: the answer comes from the note of
        findleaks, or from the holes that the kernel leaves in the file for pages that were never
        touched or were returned. Copied and compressed cores lack these holes."""
        return None

    @property
    def protected(self) -> Sequence[Range]:
        """Return the memory with data that the process cannot access, because it set PROT_NONE
        after writing. These are parts of `Region.may_hold_data` regions, ascending and disjoint."""
        return ()

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        """Return the residency of each page of all mappings at one moment; None if unknown.
        Live processes: from pagemap and smaps. Cores: from findleaks' note or the file's holes.
        `progress` is called at least every 200 ms with the completed part (0: unknown), and may
        raise."""
        return None

    @property
    def auxv(self) -> Mapping[int, int]:
        """Return the auxiliary vector by AT_ type; {} if unknown."""
        return {}

    def symbol_tables(self, module: Module) -> Sequence[Table]:
        """Return the symbol tables of a module; [] if it has none."""
        return []

    def symbol(self, name: str, module: str = "") -> Optional[Symbol]:
        """Return the symbol with exactly this (mangled) name from the .symtab or .dynsym of a
        module. All modules are searched, or only those whose base name starts with `module`."""
        ...

    def symbols_starting(self, prefix: str) -> Sequence[Symbol]:
        """Return all symbols whose (mangled) name starts with `prefix`, such as v8dbg_…"""
        ...

    def symbolize(self, address: int) -> Optional[Symbol]:
        """Return the symbol that covers `address` (demangled name), or None."""
        ...

    def thread_locals(self, module: Module) -> Sequence[Symbol]:
        """Return the thread-local variables of a module, by their offset in the module's block of
        thread-local storage."""
        return []

    def debug_data(self, module: Module) -> Sequence[Buffer]:
        """Return the files that may hold the debug information of a module: its own file, if it is
        proven to be the loaded one, and the separate debug file with its build-id."""
        return []

    def alternate_data(self, module: Module, wanted: Alternate) -> Optional[Buffer]:
        """Return the supplementary file (made by dwz) that a debug file of this module names."""
        return None

    def split_data(self, module: Module, path: str) -> Optional[Buffer]:
        """Return the .dwo file at `path`, which the debug file of a module names. If `path` is "",
        return the module's .dwp file. None if the file is not found."""
        return None

    def add_debug_file(self, module: Module, path: str) -> bool:
        """Use a file of this machine as the debug file of a module. Return False if the file does
        not match."""
        return False

    def threads(self) -> Sequence[Thread]: ...

    def thread_names(self) -> Mapping[int, str]:
        """Return thread names (prctl PR_SET_NAME) by tid: for processes of this machine, and for
        cores that findleaks wrote. Other targets have none."""
        return {}

    def kernel_state(self) -> Optional[KernelState]:
        """Return the pointers that only the kernel keeps. They are known for processes of this
        machine, and for cores that findleaks wrote; otherwise return None."""
        return None

    def run_on(self, seconds: float) -> bool:
        """Let the process run for `seconds`, then stop it. Data read before is then invalid.
        For cores, and if findleaks may not let the process run, do nothing and return False."""
        return False

    def breakpoint_host(self) -> Optional[BreakpointHost]:
        """Return the process if a debugger of this machine can run it to breakpoints; otherwise
        None."""
        return None

    def injection_host(self) -> Optional[InjectionHost]:
        """Return the process if a debugger can change and run it; otherwise None."""
        return None

    def is_interrupted(self) -> bool:
        """Return True if the user has asked to stop. Poll this at least every 200 ms of work."""
        return False

    def close(self) -> None: ...
