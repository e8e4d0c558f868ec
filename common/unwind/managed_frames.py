"""Frames of managed functions (Python, Ruby, Java) and their places between a thread's native
frames.

A native function of an interpreter executes one or more managed functions. Their frames precede its
own frame, as frames of inlined functions do. If a runtime generates code, frames of managed
functions replace the frames of this code."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.target.base import Range, Thread
from findleaks.unwind.frame_locks import LockWait
from findleaks.unwind.frames import CodeStep, FrameRegisters, Trace
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.unwind.code_tables import CodeTable
    from findleaks.unwind.stacks import NamedFrame

WalkFrame = Callable[[int, int], Sequence["NamedFrame"]]
DEEPEST = 1 << 14  # managed frames of one thread that are read
# A stub hashes at most this many bytes of a table of lines, as in stack_walk.S. Functions that
# differ only in later bytes have the same hash.
MOST_HASHED = 4096


class NativeStack(NamedTuple):
    """The native frames of a thread, and the registers in each."""

    thread: Thread
    trace: Trace
    registers: Sequence[FrameRegisters]

    def find(self, address: int) -> int:
        """Return the index of the frame whose part of the stack has this address; -1 if none
        has."""
        frames = self.trace.frames
        return next((at for at in range(len(frames) - 1) if frames[at].sp <= address < frames[at + 1].sp), -1)


class Segment(NamedTuple):
    """Managed frames that one native function executes, innermost first. `at` is the index of its
    frame, or -1 if it is not among the known native frames. `replaces`: the native frame belongs to
    code that the runtime generated, and is not listed."""

    at: int
    frames: tuple[NamedFrame, ...]
    replaces: bool = False


class CallFrame(NamedTuple):
    """A frame of code that a runtime generated, at the return address of a call: the functions that
    it executes, innermost first, and how its caller is found.

    `size`: bytes of the frame, including the return address; the caller's frame pointer is saved
    below the return address. 0: the frame pointer points to these two words. `bytecode`: 0, or for
    a function that is interpreted, the offset from the frame pointer of the word with the current
    bytecode's address; `frames` is then empty. `called_by_native`: whether the caller is native
    code; otherwise it is generated code. `end`: why the caller cannot be found, or "". `identity`:
    see ManagedFrames.is_current."""

    frames: tuple[NamedFrame, ...]
    size: int = 0
    bytecode: int = 0
    called_by_native: bool = False
    end: str = ""
    identity: Hashable = None


class ChainedCall(NamedTuple):
    """A call of an interpreted function, in a chain of frames that the interpreter maintains.
    `function`: None if it cannot be read. `instruction`: the position in the function, in 32 bits,
    in the form that `name_bytecode` expects."""

    function: Hashable
    instruction: int


class ChainPart(NamedTuple):
    """The calls that one native frame executes, innermost first. `anchor`: an address in this
    native frame; 0 if no address is known."""

    anchor: int
    calls: Sequence[ChainedCall]


class ManagedFrames:
    """Reads the managed frames of a runtime. `warnings`: sentences on what could not be read so
    far. `kind`: the kind of its frames; see NamedFrame. `reads_calls`: whether it can read frames
    while stacks of a running process are recorded. If a runtime generates code, `call_frame` and
    `function` describe it. If an interpreter maintains a chain of frames, `chain_settings`
    describes the chain."""

    warnings: Sequence[str] = ()
    kind = ""
    library_files: Optional[re.Pattern[str]] = None  # matches files of the language's own library

    def is_of_library(self, frame: NamedFrame) -> bool:
        """Return whether a function belongs to the library of its language. A function without a
        file belongs to it, because it is written in C."""
        return not frame.file or (self.library_files is not None and self.library_files.search(frame.file) is not None)

    def is_of_wait(self, frame: NamedFrame) -> bool:
        """Return whether a function is one that other functions of the library call to wait."""
        return False

    def idle_remedies(self, frames: Sequence[NamedFrame]) -> Sequence[str]:
        """Return how to end threads that wait for work in these frames; () if unknown, or if they
        do not wait for work."""
        return ()

    @property
    def reads_calls(self) -> bool:
        return False

    def call_frame(self, pc: int) -> Optional[CallFrame]:
        """Return the frame of generated code to which a call returns; None for other code."""
        return None

    @property
    def names_frames(self) -> bool:
        """Whether the reader names frames while a stack is walked. At breakpoints, `walk` does
        this; for stubs, `code_distance` and `call_functions` do."""
        return False

    def code_distance(self, pc: int) -> Optional[int]:
        """Return the distance of a return address from the beginning of its code, if a runtime
        generated this code and it may execute managed functions. Return 0 if it is the code of an
        interpreter whose frames contain the function; None for other code."""
        return None

    def call_functions(self, runtime: int, pc: int, fp: int) -> Sequence[NamedFrame]:
        """Return the managed functions that the frame with this return address and frame pointer
        executes, innermost first. The thread of this frame waits in a stub. `runtime`: the instance
        of the runtime that the thread is in."""
        return ()

    def see_threads(self, thread_pointers: Sequence[int]) -> None:
        """Prepare to read the frames of the threads with these thread pointers. The process is
        stopped. This call may change `chain_settings`."""

    def inherit(self, before: ManagedFrames) -> None:
        """Copy the results of `before`, an earlier reader of the same process, which has a target
        with older mappings."""

    def walk(self, thread_pointer: int) -> Optional[WalkFrame]:
        """Return a function that names the frames of one stack of a stopped thread; None if
        frames are named later, by their return addresses. The function is called with the return
        address and the frame pointer of each frame, innermost first. It returns the managed
        functions that the frame executes, and that replace the frame; () for other frames."""
        return None

    def is_current(self, pc: int, frame: CallFrame) -> bool:
        """Return whether no other code can have been at `pc` since `call_frame` returned
        `frame`."""
        return self.call_frame(pc) == frame

    def function(self, address: int) -> Optional[Hashable]:
        """Return the interpreted function that a frame refers to; None if there is none at this
        address."""
        return None

    def name_bytecode(self, function: Hashable, address: int) -> Optional[NamedFrame]:
        """Return the name and line of a bytecode of an interpreted function; None if it has no
        bytecode at this address. For a ChainedCall, `address` is its `instruction`. The runtime
        that maintains the chain also names an unreadable function (None), by its kind."""
        return None

    @property
    def chain_settings(self) -> Sequence[int]:
        """Words with which a stub finds the chain of frames (CHAIN_KIND and the following in
        stack_walk.S); () if there is no chain."""
        return ()

    @property
    def is_paired(self) -> bool:
        """Whether each native frame of the interpreter executes exactly one frame of the chain. The
        parts of such a chain have no anchor."""
        return False

    def executes(self, pc: int) -> bool:
        """Return whether the native function that contains the return address `pc` may execute
        functions of the chain. If `is_paired` is set, such a function always executes one."""
        return False

    def chain_parts(self, thread_pointer: int, stack: Range) -> Iterator[ChainPart]:
        """Yield the parts of a thread's chain, innermost first. `thread_pointer` and `stack` are
        the thread pointer and the native stack of the thread."""
        return iter(())

    def read_again(self, read: Callable[[int, int], bytes]) -> None:
        """Discard data that was read from the process, because the process has run since. `read`
        returns its current bytes: fewer than requested, or b"", if a part is not mapped."""

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        """Return the managed frames of a thread, innermost first."""
        raise NotImplementedError

    def step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        """Unwind a frame of code that the runtime generated; see frames.StepCode."""
        return None

    def deadlocks(self) -> Sequence[Sequence[LockWait]]:
        """Return the deadlocks: cycles of threads in which each thread waits for a lock that the
        next thread holds."""
        return ()

    def thread_names(self) -> Mapping[int, str]:
        """Return names of threads, by the kernel's number of the thread."""
        return {}


class CodeDescriptions(NamedTuple):
    """Descriptions of code without call frame information: tables, and readers of code that a
    runtime generates. `reads_calls` of these readers is true."""

    tables: Sequence[CodeTable] = ()
    readers: Sequence[ManagedFrames] = ()


class Placed(NamedTuple):
    """Managed frames by the index of the native frame that they precede. Managed frames that follow
    all known native frames have the number of native frames as their index. `replaced`: indices of
    native frames that are not listed."""

    frames: Mapping[int, tuple[NamedFrame, ...]]
    replaced: frozenset[int]


NO_FRAMES = Placed({}, frozenset())


def place_frames(stack: NativeStack, readers: Iterable[ManagedFrames]) -> Placed:
    """Return the managed frames of a thread. They keep the order that their reader gives."""
    placed: dict[int, tuple[NamedFrame, ...]] = {}
    replaced: set[int] = set()
    for reader in readers:
        least = 0
        for at, frames, replaces in reader.segments(stack):
            least = max(least, at if at >= 0 else len(stack.trace.frames))
            placed[least] = placed.get(least, ()) + frames
            if replaces:
                replaced.add(at)
    return Placed(placed, frozenset(replaced))
