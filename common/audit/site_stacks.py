"""Read call stacks of allocation sites, and name their functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Union

from findleaks.allocators.base import Allocator
from findleaks.allocators.sites import SourceFrame
from findleaks.session import Session
from findleaks.unwind.frames import Frame, Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer, without_parameters

StackFrame = Union[NamedFrame, SourceFrame]


DEEPEST = 8  # innermost frames in which allocation functions are looked for
ALLOCATES = re.compile(
    r"(?:_+|_?rjem_|_*je_|tc_|_*libc_|_*interceptor_)?"
    r"(?:malloc|calloc|realloc|reallocarray|memalign|posix_memalign|aligned_alloc|valloc|pvalloc|mallocx|rallocx)(?:_default)?"
    r"|do_rallocx|do_realloc\w*|operator new(?:\[\])?|TCMallocInternal\w+"
)
"""Allocation functions, including the prefixes that libraries add."""


class SiteNames:
    """Names the frames of a session's sites, and caches the names."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._searched: dict[int, str] = {}

    @cached_property
    def _namer(self) -> Namer:
        return Namer(self._session.target, Unwinder(self._session.target), self._session.sources)

    def frames(self, number: int) -> list[StackFrame]:
        """Return all recorded frames, innermost first. Inlined functions are included."""
        return [named for frame in self._session.sites[number].site.frames for named in self._name_frame(frame)]

    def callers(self, number: int) -> list[StackFrame]:
        """Return `frames` without the innermost ones that belong to the recorder or to an
        allocation function.
        If no other frames are left, all are returned."""
        frames, own = self.frames(number), self._session.sites[number].recording.own
        first = 0
        while own and first < len(frames) and _module(frames[first]) == own:
            first += 1
        for i, frame in enumerate(frames[first : first + DEEPEST], first):
            if not isinstance(frame, SourceFrame) and ALLOCATES.fullmatch(without_parameters(frame.function)):
                first = i + 1
        return frames[first:] or frames

    def brief(self, number: int, most: int = 3) -> str:
        """Return the innermost callers as one line: "parse_header ← on_request ← worker"."""
        labels = [frame_label(frame) for frame in self.callers(number)]
        return " ← ".join([*labels[:most], *(["…"] if len(labels) > most else [])]) or "an empty stack"

    def search_text(self, number: int) -> str:
        """Return the functions and files of the stack as text that suppressions search."""
        if number not in self._searched:
            self._searched[number] = "\n".join(_names(self.frames(number)))
        return self._searched[number]

    def _name_frame(self, frame: Union[int, SourceFrame]) -> Sequence[StackFrame]:
        if isinstance(frame, SourceFrame):
            return (frame,)
        # A return address is named after the call instruction that precedes it.
        return self._namer.names(Frame(frame, max(frame - 1, 0), 0, "return address"))


def _module(frame: StackFrame) -> str:
    return "" if isinstance(frame, SourceFrame) else frame.module


def frame_label(frame: StackFrame) -> str:
    """Return a frame in its short form: "uv_run+0x164", "shop/orders.py:41"."""
    if isinstance(frame, SourceFrame):
        place = f"{frame.file}:{frame.line}" if frame.line else frame.file
        return f"{frame.function} ({place})" if frame.function else place
    return frame._replace(function=without_parameters(frame.function)).label()


def _names(frames: list[StackFrame]) -> Iterator[str]:
    for frame in frames:
        yield from (frame.function, frame.file if isinstance(frame, SourceFrame) else frame.module)


def list_recording_hints(session: Session) -> list[str]:
    """Return how to start a process so that it records stacks: one line for each allocator in
    use."""
    return [f"{one.title}: {one.rename_settings(' or '.join(one.site_settings or _OTHERWISE))}" for one in _allocators_with_blocks(session)]


_OTHERWISE = ("records no stacks; jemalloc does: LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,lg_prof_sample:0",)


def _allocators_with_blocks(session: Session) -> list[Allocator]:
    directory = session.directory
    return [one for one in directory.allocators if any(total.blocks for total in directory.totals(one))]
