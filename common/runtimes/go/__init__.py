"""Go: its heap, in which goroutines' stacks lie beside objects. Objects are not followed one by one: Go collects them itself.

All of the heap that is in use counts as root memory, so that what C code took from malloc is held by whatever object refers to it.
Nothing is asked of symbols: stripped programs have none.

Sources: Go 1.19 to 1.26, src/cmd/link/internal/ld/elf.go (ELF_NOTE_GO_NAME, the build ID's note) and src/debug/buildinfo/buildinfo.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.base import Runtime
from findleaks.target import elf
from findleaks.target.base import Module, Target
from findleaks.target.modules import headers

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory

NOTE_NAME, NOTE_TYPE = b"Go", 4
MOST_NOTE = 1 << 12


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """See base.Finder: a file with Go's build ID, or a program with Go's build information, has to be loaded."""
    for module in target.modules():
        if _has_note(target, module):
            from findleaks.runtimes.go.instance import Go

            return [Go(target, engine, module)]
    return []


def _has_note(target: Target, module: Module) -> bool:
    found = headers(target.read, module.start, module.end - module.start) if module.end > module.start else None
    for segment in found[1] if found is not None else ():
        if segment.type == elf.PT_NOTE and 0 < segment.filesz <= MOST_NOTE:
            try:
                data = target.read(segment.vaddr + module.bias, segment.filesz)
            except UnreadableMemory:
                continue
            if found is not None and any((n.name, n.type) == (NOTE_NAME, NOTE_TYPE) for n in elf.notes(data, found[0], segment.align)):
                return True
    return False
