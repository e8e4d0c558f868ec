"""Read Go's heap, its counters, and goroutines.

All of the heap in use counts as root memory, so a malloc block is reachable if any object refers to
it. No symbols are used, because stripped programs have none.

Sources: Go 1.19 to 1.26, src/cmd/link/internal/ld/elf.go (ELF_NOTE_GO_NAME, the build ID's note)
and src/debug/buildinfo/buildinfo.go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.errors import UnreadableMemory
from findleaks.target import elf
from findleaks.target.modules import module_headers

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.runtimes.go.instance import Go
    from findleaks.target.base import Module, Target

NOTE_NAME, NOTE_TYPE = b"Go", 4
MAX_NOTE = 1 << 12  # maximum bytes of a segment of notes; larger ones are ignored


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find a file with Go's build ID; see base.Finder."""
    return find_scheduler(target, engine, directory)


def find_scheduler(target: Target, engine: Engine, directory: Optional[Directory] = None) -> Sequence[Runtime]:
    """Return a runtime for each file that `find` finds, because Go schedules goroutines itself.

    A program has a runtime, and each library of -buildmode=c-shared has a separate one. Plugins
    have none, because they are modules of the program."""
    found: list[Go] = []
    for module in target.modules():
        if _has_note(target, module) and (not found or _is_separate(found, module)):
            from findleaks.runtimes.go.instance import Go

            found.append(Go(target, engine, module, directory))
    return found


def _is_separate(found: Sequence[Go], module: Module) -> bool:
    """Whether a file's functions belong to none of the runtimes in `found`. Returns False if the
    functions of one of these runtimes are unknown."""
    programs = [one.program for one in found]
    modules = [part for program in programs if program is not None for part in program.modules]
    return None not in programs and not any(module.start <= part.text.start < module.end for part in modules)


def _has_note(target: Target, module: Module) -> bool:
    found = module_headers(target, module)
    for segment in found[1] if found is not None else ():
        if segment.type == elf.PT_NOTE and 0 < segment.filesz <= MAX_NOTE:
            try:
                data = target.read(segment.vaddr + module.bias, segment.filesz)
            except UnreadableMemory:
                continue
            if found is not None and any((n.name, n.type) == (NOTE_NAME, NOTE_TYPE) for n in elf.notes(data, found[0], segment.align)):
                return True
    return False
