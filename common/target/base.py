"""What every process image offers, whether a core file, a live process, GDB, LLDB or a test's fake.

All addresses are integers in the target's address space, all sizes are bytes, ranges are half open [start, end).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, Union

from findleaks.target.arch import Arch

if TYPE_CHECKING:
    from findleaks.target.control import BreakpointHost, InjectionHost
    from findleaks.target.elf import Table
    from findleaks.target.residency.presence import Presence

Buffer = Union[bytes, bytearray, memoryview]

PIECE = 16 << 20
"""Longest piece `Target.pieces` yields, in bytes: short enough that one kernel call takes well under 200 ms."""


class Range(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True)
class Region:
    """One mapped range. `name` is a file path, a kernel label such as "[stack]", or "" for anonymous memory."""

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

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end


@dataclass(frozen=True)
class Module:
    """A loaded ELF file. `bias` is what to add to the file's own addresses (p_vaddr, st_value) to get the target's."""

    path: str
    bias: int
    start: int
    end: int
    build_id: str = ""


@dataclass(frozen=True)
class Symbol:
    """`size` 0 means the table does not say."""

    name: str
    address: int
    size: int
    module: str = ""


@dataclass(frozen=True)
class Thread:
    """A thread at the moment of the stop.

    `registers` has the general registers under the architecture's own names; `words` every aligned word of the general
    and the vector registers, which are roots if they are read again; `names` the register of each, as far as that is known ("" or
    none: it is not), vector registers by their parts ("xmm3" is the low 128 bits, "ymm3" the next 128, "zmm3" the upper 256); `sp`,
    `pc` and `thread_pointer` are among them where the architecture has them (`thread_pointer` 0: unknown).
    """

    tid: int
    registers: dict[str, int]
    sp: int
    pc: int
    thread_pointer: int
    words: Sequence[int] = field(default=(), repr=False)
    names: Sequence[str] = field(default=(), repr=False)


class Piece(NamedTuple):
    """Bytes of the target that lie in our own memory: `data` is a writable, contiguous memoryview of format 'B'.

    Writable only so that ctypes can take its address without a copy; nobody writes to it, and a write would not reach
    the target.
    """

    address: int
    data: memoryview


class Mapped(Protocol):
    """What unwinding a stack needs of a target."""

    arch: Arch

    def regions(self) -> Sequence[Region]: ...

    def modules(self) -> Sequence[Module]: ...

    def read(self, address: int, size: int) -> bytes: ...

    def word(self, address: int) -> int: ...


class Target(Protocol):
    """A process image. Everything is read only. `TargetDefaults` has what is said where it is not known."""

    arch: Arch
    description: str  # one line: "core of ./server (pid 4711), 5 threads"
    pid: Optional[int]
    live: bool
    path: str  # of the core file; "" for a live process
    unread: list[Range]  # writable memory that was mapped and is not there
    truncated: bool  # the core ends before its headers say
    warnings: list[str]  # what the user must know: unread memory, a truncated core, files that do not match
    crashed: int  # the thread that a fault of its own, or abort(), ended; 0: none, or not known
    exe_path: str  # of the program when it ran; "" where that is not known

    def regions(self) -> Sequence[Region]:
        """Sorted by address, disjoint."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory; never short."""
        ...

    def read_code(self, address: int, size: int) -> bytes:
        """What `read` gives, without the breakpoints that a debugger has put there."""
        ...

    def word(self, address: int) -> int:
        """The pointer-sized unsigned word at `address`, or UnreadableMemory. Cheap (cached): made for following lists."""
        ...

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The readable parts of [start, end) in ascending order, each at most PIECE long; what is absent is left out."""
        ...

    def nonzero(self, start: int, end: int) -> Iterator[Range]:
        """What of [start, end) may be there and hold anything but zeros, ascending: all of it, less what is absent from a core, and the
        long holes of its file, which are zeros. Found out without a look at the bytes. For searches, which find nothing in zeros."""
        ...

    def resident(self, start: int, end: int) -> Optional[int]:
        """Bytes of [start, end) that lay in memory (or in swap) at the stop; None where that is not known. Live: of private anonymous
        memory. A core tells by the holes in its file, which the kernel leaves for pages that were never touched, or given back; copies
        and compressed cores have lost that."""
        ...

    def presence(self, tell: Callable[[float], None]) -> Optional[Presence]:
        """The same page by page and for every mapping, of one moment: live from pagemap and smaps, of a core from its holes. None where
        that is not known. `tell` is called at least each 200 ms with the part that is done (0: unknown), and may raise."""
        ...

    @property
    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector by AT_ type; {} where it is not known."""
        ...

    def modules(self) -> Sequence[Module]: ...

    def symbol_tables(self, module: Module) -> Sequence[Table]:
        """The symbol tables of a module; [] where there are none."""
        ...

    def symbol(self, name: str, module: str = "") -> Optional[Symbol]:
        """The symbol of exactly this (mangled) name, from .symtab or .dynsym of any module or the one whose basename starts so."""
        ...

    def symbols_starting(self, prefix: str) -> Sequence[Symbol]:
        """Every symbol whose (mangled) name starts so, of all modules: families of constants such as v8dbg_…"""
        ...

    def symbolize(self, address: int) -> Optional[Symbol]:
        """The symbol that covers `address` (demangled name), or None."""
        ...

    def thread_locals(self, module: Module) -> Sequence[Symbol]:
        """A module's thread-local variables, ascending; their addresses count from where a thread has the module's."""
        ...

    def debug_data(self, module: Module) -> Sequence[Buffer]:
        """The files that may have a module's debug information: its own, where it is proven to be the one that was loaded, and the
        separate one of its build-id."""
        ...

    def threads(self) -> Sequence[Thread]: ...

    def thread_names(self) -> Mapping[int, str]:
        """tid -> the name that the thread was given (prctl PR_SET_NAME), of a process of this machine; cores do not have them: {}."""
        ...

    def run_on(self, seconds: float) -> bool:
        """Let the process run for so long and stop it again: all that was read of it before is void. False, and nothing is done, where it
        is a core, or not ours to let go."""
        ...

    def breakpoint_host(self) -> Optional[BreakpointHost]:
        """The process let run and stopped at breakpoints, by the debugger that holds it; None where none does on this machine."""
        ...

    def injection_host(self) -> Optional[InjectionHost]:
        """The process changed and let run, by the debugger that holds it; None where none does that can."""
        ...

    def interrupted(self) -> bool:
        """True once the user asked to stop; polled at least every 200 ms of work."""
        ...

    def close(self) -> None: ...


class TargetDefaults:
    """Target's optional parts, as a process image has them that knows no more than its memory, and that no debugger holds."""

    exe_path = ""
    crashed = 0

    @property
    def auxv(self) -> Mapping[int, int]:
        """See Target."""
        return {}

    def read(self, address: int, size: int) -> bytes:
        """See Target."""
        raise NotImplementedError

    def read_code(self, address: int, size: int) -> bytes:
        """See Target."""
        return self.read(address, size)

    def symbol_tables(self, module: Module) -> Sequence[Table]:
        """See Target."""
        return []

    def thread_names(self) -> Mapping[int, str]:
        """See Target."""
        return {}

    def run_on(self, seconds: float) -> bool:
        """See Target."""
        return False

    def breakpoint_host(self) -> Optional[BreakpointHost]:
        """See Target."""
        return None

    def injection_host(self) -> Optional[InjectionHost]:
        """See Target."""
        return None

    def interrupted(self) -> bool:
        """See Target."""
        return False
