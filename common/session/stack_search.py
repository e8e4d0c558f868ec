"""Find the outermost frames of stacks whose stack pointers are unknown, such as those of suspended
coroutines (x86).

The upper end of a mapping is a stack if a return address is near it, and call frame information
shows that the frame of this function ends there. The frame may be large: its function may have an
array of 64 KiB. Tables of functions and recorded call stacks contain code addresses, too. Therefore
the calls of two neighbouring frames must agree.

makecontext writes the address of the code that ends a coroutine to the upper end of its stack
(sysdeps/unix/sysv/linux/x86_64/__start_context.S and i386/makecontext.S of glibc)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import resolve_stub
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import I386, X86_64
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, merge_to_most, range_at
from findleaks.target.words import word_at
from findleaks.unwind.cfi import Row
from findleaks.unwind.frames import CALL_BYTES, STACK_TOP, Unwinder, is_return_address
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

LARGEST_FRAME = 1 << 20  # bytes at the upper end of a stack that are searched if the frame is large
_CLUSTERS = 4  # ranges of code whose addresses are searched for
# Return addresses of one stack that are examined, from the upper end downward
_MOST_PLACES, _MOST_TRIED = 4096, 256
_POLLED = 16  # of these between two checks for Ctrl-C
_MOST_INNER = 64  # return addresses below a frame that are examined for its callee
_MOST_FRAMES = 8  # outermost frames that are listed
_SAVED = 7  # words below a return address that may contain the caller's frame pointer
_NEAR_CALL = 0xE8  # call with a 32-bit offset
_NEAR_BYTES = 5  # bytes of this instruction
# The code with which coroutines of makecontext end: mov %rbx, %rsp; mov (%rsp), %rdi. On i386:
# lea (%esp,%ebx,4), %esp. Code for shadow stacks may precede it.
_CONTEXT_ENDS = {X86_64.name: b"\x48\x89\xdc\x48\x8b\x3c\x24", I386.name: b"\x8d\x24\x9c"}
_CONTEXT_CODE = {X86_64.name: 128, I386.name: 3}  # bytes of code in which these instructions are
_PHASE = "looking for stacks"


def supports_stack_search(target: Target) -> bool:
    """Whether find_stack_frames works for a process: only on x86."""
    return target.arch.name in _CONTEXT_ENDS


def find_stack_frames(session: Session, start: int, end: int) -> Optional[list[int]]:
    """Return the return addresses into the outermost functions of the stack [start, end), outermost
    first; [] if no function of the stack is known. None if the memory does not look like a stack.
    Call this only if supports_stack_search(session.target) is true."""
    search = session.once(StackSearch, lambda: StackSearch(session))
    return search.frames(start, end)


class _Frame(NamedTuple):
    """A frame of the function to which `value`, the word at `address`, returns. `end`: the
    canonical frame address. `slot`: the place of the function's own return address."""

    address: int
    value: int
    end: int
    slot: int


class _Place(NamedTuple):
    """A word at `address` that contains a return address, `value`."""

    address: int
    value: int


class StackSearch:
    """Finds outermost frames in the memory of a process. Call frame information is cached."""

    def __init__(self, session: Session) -> None:
        self._session, self._target = session, session.target
        target = self._target
        self._unwinder = Unwinder(target)
        self._code = merge_ranges(Range(one.start, one.end) for one in target.regions() if one.executable)
        self._clusters = merge_to_most(self._code, _CLUSTERS)
        self._word = target.arch.word
        names = target.arch.dwarf_registers
        self._sp, self._fp = names.index(target.arch.sp), names.index(target.arch.frame_pointer)
        self._returns: dict[int, bool] = {}
        self._ends: dict[int, bool] = {}
        self._functions: dict[int, Optional[int]] = {}

    def frames(self, start: int, end: int) -> Optional[list[int]]:
        """Return at most _MOST_FRAMES return addresses; see find_stack_frames. If no frame is found
        in the last STACK_TOP bytes, the last LARGEST_FRAME bytes are searched."""
        end_slot = None
        for size in (STACK_TOP, LARGEST_FRAME):
            words = self._find_code_words(max(end - size, start), end)
            if size == STACK_TOP:
                end_slot = next((one.address for one in reversed(words) if self._ends_context(one.value)), None)
            places = [one for one in words if self._is_return(one.value)]
            outermost = self._find_outermost(places, Range(max(end - STACK_TOP, start), end), end_slot)
            if outermost is not None:
                return list(self._list_inward(places, outermost))
            if end - start <= size:
                break
        return None if end_slot is None else []

    def _find_code_words(self, start: int, end: int) -> list[_Place]:
        """Return the words in [start, end) that contain addresses of code, ascending."""
        found = list[_Place]()
        for piece in self._session.pieces([Range(start, end)], _PHASE):
            for low, high in self._clusters:
                addresses, values = find_pointers(self._session.engine, piece, low, high)
                found += map(_Place, addresses[-_MOST_PLACES:], values[-_MOST_PLACES:])
        return [one for one in sorted(found)[-_MOST_PLACES:] if range_at(self._code, one.value) is not None]

    def _ends_context(self, value: int) -> bool:
        """Whether the code at an address is that with which coroutines of makecontext end."""
        if value not in self._ends:
            name = self._target.arch.name
            try:
                code = self._target.read(value, _CONTEXT_CODE[name])
            except UnreadableMemory:
                code = b""
            self._ends[value] = _CONTEXT_ENDS[name] in code and not self._is_return(value)
        return self._ends[value]

    def _is_return(self, value: int) -> bool:
        """Whether a value is the address after a call. The start of a function is not: pointers to
        functions are more frequent than calls at the end of the function before."""
        if value not in self._returns:
            self._returns[value] = is_return_address(self._target, value) and self._function(value) != value
        return self._returns[value]

    def _find_outermost(self, places: Sequence[_Place], top: Range, end_slot: Optional[int]) -> Optional[_Frame]:
        """Return the outermost frame, which ends in the range `top`. `end_slot`: the place where
        makecontext wrote an address; None if unknown."""
        tried = range(len(places) - 1, max(len(places) - 1 - _MOST_TRIED, -1), -1)
        for at in interruptible(self._target, tried, _POLLED):
            frame = self._frame(places[at], top.end, end_slot)
            if frame is None or frame.end <= top.start or self._is_recorded(places, at):
                continue
            if frame.slot == end_slot or (
                self._explains(places, at, frame, top.end) and (self._has_caller(frame) or self._has_callee(places, at))
            ):
                return frame
        return None

    def _frame(self, place: _Place, end: int, end_slot: Optional[int] = None) -> Optional[_Frame]:
        """Return the frame to which a function returns; None if it is unknown, or not below
        `end`. `end_slot`: the place of the function's own return address, if the frame's extent is
        not known otherwise."""
        row = self._unwinder.row(place.value - 1)
        if row is None or row.outermost:
            return None
        for base in self._list_bases(place.address, row, end):
            top = base + row.offset
            rule = row.rules.get(row.return_register)
            slot = top + rule.value if rule is not None and rule.how == "offset" else top - self._word
            if place.address < slot <= end - self._word and top <= end:
                return _Frame(*place, top, slot)
        if end_slot is not None and place.address < end_slot and (row.expression or row.register != self._sp):
            return _Frame(*place, end_slot + self._word, end_slot)
        return None

    def _list_bases(self, address: int, row: Row, end: int) -> Iterator[int]:
        """Yield the possible values of the register from which a frame is computed. The callee
        saved the frame pointer below its return address, usually as the first register."""
        if row.expression:
            return
        if row.register == self._sp:
            yield address + self._word
        elif row.register == self._fp:
            for at in range(1, _SAVED + 1):
                value = word_at(self._target, address - at * self._word)
                if address < value < end and value % self._word == 0:
                    yield value

    def _is_recorded(self, places: Sequence[_Place], at: int) -> bool:
        """Whether the word below or above a place is a return address, too, as in recorded call
        stacks. Frames of x86-64 are aligned to two words."""
        address = places[at].address
        beside = [places[other].address for other in (at - 1, at + 1) if 0 <= other < len(places)]
        return self._word == X86_64.word and any(abs(address - other) == self._word for other in beside)

    def _explains(self, places: Sequence[_Place], at: int, frame: _Frame, end: int) -> bool:
        """Whether all return addresses above a place belong to its frame or to those of its
        callers. Large frames contain arrays with any words, and stale words of calls that the
        function made before."""
        addresses = [one.address for one in places]
        functions, known, here = {self._function(frame.value - 1)}, set[int](), frame
        for _ in range(_MOST_FRAMES):
            if here.end - here.address > STACK_TOP:
                known.update(addresses[bisect_left(addresses, here.address) : bisect_left(addresses, here.slot)])
            place = bisect_left(addresses, here.slot)
            if place == len(places) or addresses[place] != here.slot:
                break
            known.add(here.slot)
            functions.add(self._function(places[place].value - 1))
            outer = self._frame(places[place], end)
            if outer is None:
                break
            here = outer
        rest = (one for one in places[at + 1 :] if one.address not in known)
        return all(self._function(one.value - 1) in functions for one in rest)

    def _has_caller(self, frame: _Frame) -> bool:
        """Whether the return address of a frame follows a call of its function, or is that of the
        code with which a coroutine ends."""
        value = word_at(self._target, frame.slot)
        if range_at(self._code, value) is None:
            return False
        return not self._is_return(value) or self._calls(value, self._function(frame.value - 1))

    def _has_callee(self, places: Sequence[_Place], at: int) -> bool:
        """Whether the call before a return address agrees with the stack below: there is a frame of
        the called function, or this function has no call frame information, as code that switches
        stacks."""
        place = places[at]
        called = self._find_called(place.value)
        if called is not None and self._unwinder.row(called) is None:
            return True
        for inner in reversed(places[max(at - _MOST_INNER, 0) : at]):
            frame = self._frame(inner, place.address + self._word)
            if frame is not None and frame.slot == place.address and self._calls(place.value, self._function(frame.value - 1)):
                return True
        return False

    def _calls(self, returns: int, function: Optional[int]) -> bool:
        """Whether the call before a return address may reach a function. Destinations of indirect
        calls are unknown."""
        called = self._find_called(returns)
        return called is None or called == function or self._function(called) != called

    def _find_called(self, returns: int) -> Optional[int]:
        """Return the function that a direct call before a return address reaches; None if the call
        is indirect, or the code is unreadable."""
        try:
            code = self._target.read(returns - CALL_BYTES, CALL_BYTES)[-_NEAR_BYTES:]
            if code[0] != _NEAR_CALL:
                return None
            called = returns + int.from_bytes(code[1:], "little", signed=True) & self._target.arch.mask
            return resolve_stub(self._target, called)
        except (UnreadableMemory, CapstoneMissing):
            return None

    def _list_inward(self, places: Sequence[_Place], frame: _Frame) -> Iterator[int]:
        """Yield the return addresses into a frame's function and into the functions that it
        called."""
        for _ in range(_MOST_FRAMES):
            yield frame.value
            at = bisect_right(places, _Place(frame.address, 0))
            limit = frame.address + self._word
            inner = (self._frame(one, limit) for one in reversed(places[max(at - _MOST_INNER, 0) : at]))
            found = next((one for one in inner if one is not None and one.slot == frame.address), None)
            if found is None:
                return
            frame = found

    def _function(self, address: int) -> Optional[int]:
        """Return the start of the function at an address; None if it is unknown."""
        if address not in self._functions:
            extent = self._unwinder.extent(address)
            self._functions[address] = extent.start if extent is not None else None
        return self._functions[address]
