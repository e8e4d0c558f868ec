"""The interface of runtimes whose objects can be written as a heap dump."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Optional

from findleaks.runtimes.base import Runtime


class DumpableRuntime(Runtime):
    """A runtime whose objects can be written as a heap dump."""

    dump_format = "hprof"
    """The format of its heap dumps: "hprof" (HPROF 1.0.2) or "heapsnapshot" (Chrome DevTools)."""

    def write_heap_dump(self, out: BinaryIO, report: Callable[[float], None]) -> Optional[list[str]]:
        """Write all objects in this format. Returns sentences about the content. If the objects
        cannot be read, nothing is written, and None is returned. `report` is called with the
        fraction that is written, from 0 to 1. Raises OSError if `out` cannot be written."""
        raise NotImplementedError
