"""Read references to Java objects in the memory of the JVM.

The tables in which libjvm describes itself are the beginning of everything else; see vm_structs.py.
This module adds how references are written, because many fields of the JVM are references."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Optional, TypeVar, cast

from findleaks.runtimes.jvm.reference_format import read_references
from findleaks.runtimes.jvm.references import References
from findleaks.runtimes.jvm.relocation import Relocation, read_colors, read_relocation
from findleaks.runtimes.jvm.vm_structs import VMStructs

T = TypeVar("T")

NMT_HEADER = 16
"""Bytes that Native Memory Tracking puts before the content of a block of malloc, if it is on
(MallocHeader; see tracked_blocks.py)."""
NMT_HEADERS = (0, NMT_HEADER)  # possible bytes before the content of a block


class Tables(VMStructs):
    """The tables of the JVM (vm_structs.py), and a decoder for references to Java objects."""

    @cached_property
    def references(self) -> Optional[References]:
        """The format of references to objects; None if it cannot be read."""
        return read_references(self, self.relocation)

    @cached_property
    def relocation(self) -> Optional[Relocation]:
        """The objects that ZGC has moved; None with other collectors."""
        found = read_colors(self)
        return read_relocation(self, *found) if found is not None else None

    @cached_property
    def _results(self) -> dict[Callable[..., Any], Any]:
        return {}

    def once(self, compute: Callable[..., T], *rest: object) -> T:
        """Return the result of compute(self, …), which is computed only once. All callers must pass
        the same arguments."""
        if compute not in self._results:
            self._results[compute] = compute(self, *rest)
        return cast(T, self._results[compute])

    def oop(self, kind: str, field: str, of: int = 0) -> int:
        """Return the address of the object that a field refers to, or 0. The field is a reference,
        or a handle, which is the address of a reference."""
        found = self.fields.get((kind, field))
        value = self.word(kind, field, of) if found is not None else None
        if not value or found is None or self.text(found.type_name) == "oop":
            return self.decode_oop(value or 0)
        return self.decode_oop(self.memory.word(value) or 0)

    def decode_oop(self, word: int) -> int:
        """Return the address of the object that a reference in native memory refers to. Such a
        reference is never compressed."""
        targets = self.references.targets(word) if word and self.references is not None else (word,)
        return targets[-1] if targets else 0
