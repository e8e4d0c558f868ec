"""Threads grouped by identical stacks, with the functions named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from findleaks.errors import Interrupted
from findleaks.target.base import Target
from findleaks.unwind.frames import Frame, Trace, Unwinder
from findleaks.wildcards import matches


class NamedFrame(NamedTuple):
    """`function`: "" if no symbol covers the address; `offset`: from the function, or the module's
    address 0; `module`: a base name, "" for code of no file."""

    address: int
    function: str
    offset: int
    module: str

    def label(self) -> str:
        """ "uv_run+0x164 (node)", "libm.so.6+0x1234", "0x7f…" """
        if self.function:
            return f"{self.function}+{self.offset:#x}" if self.offset else self.function
        return f"{self.module}+{self.offset:#x}" if self.module else hex(self.address)


@dataclass(frozen=True)
class Stack:
    """A stack and the threads that have it; `end` as in frames.Trace."""

    frames: tuple[NamedFrame, ...]
    end: str
    threads: list[int]


class Namer:
    """Names frames, cached by address."""

    def __init__(self, target: Target, unwinder: Unwinder) -> None:
        self._target, self._unwinder = target, unwinder
        self._known: dict[int, NamedFrame] = {}

    def name(self, frame: Frame) -> NamedFrame:
        if frame.call not in self._known:
            module = self._unwinder.module(frame.call)
            symbol = self._target.symbolize(frame.call)
            base = symbol.address if symbol is not None else module.bias if module is not None else 0
            path = module.path.rsplit("/", 1)[-1] if module is not None else ""
            self._known[frame.call] = NamedFrame(frame.pc, symbol.name if symbol is not None else "", frame.pc - base, path)
        return self._known[frame.call]


def group_threads(target: Target) -> list[Stack]:
    """Stacks, most threads first, then in their order. Interrupted if the user asks to stop."""
    unwinder = Unwinder(target)
    namer = Namer(target, unwinder)
    groups: dict[Trace, list[int]] = {}
    for thread in target.threads():
        if target.interrupted():
            raise Interrupted
        trace = unwinder.trace(thread)
        key = Trace(tuple(frame._replace(sp=0) for frame in trace.frames), trace.end)
        groups.setdefault(key, []).append(thread.tid)
    made = [Stack(tuple(namer.name(frame) for frame in trace.frames), trace.end, threads) for trace, threads in groups.items()]
    return sorted(made, key=lambda stack: -len(stack.threads))


_KEPT = ("(anonymous namespace)", "(lambda", "{lambda")


def without_parameters(function: str) -> str:
    """Without parameters or brackets: "node::Start(int, char**)" is node::Start."""
    depth = 0
    for at, letter in enumerate(function):
        before = function[:at]
        if letter == "<" and not before.endswith(("operator", "operator<")):
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif letter == "(" and at and not depth and not function.startswith(_KEPT, at) and not before.endswith("operator"):
            return before
    return function


def matches_function(frame: NamedFrame, pattern: str) -> bool:
    """Whether `pattern` (with * and ?) is this function's whole name, its name without parameters,
    or the last part of that (MakeCallback for node::MakeCallback)."""
    if not frame.function:
        return False
    plain = without_parameters(frame.function)
    known = (frame.function, plain, plain.rsplit("::", 1)[-1])
    return any(matches(pattern, name) for name in known) if any(c in pattern for c in "*?") else pattern in known


def filter_stacks(found: Iterable[Stack], function: str, module: str, not_under: Sequence[str]) -> list[Stack]:
    """Stacks with a frame of `function` and one of `module` ("": any), and none of `not_under`."""
    return [
        stack
        for stack in found
        if (not function or any(matches_function(frame, function) for frame in stack.frames))
        and (not module or any(frame.module == module or matches(module, frame.module) for frame in stack.frames))
        and not any(matches_function(frame, pattern) for pattern in not_under for frame in stack.frames)
    ]
