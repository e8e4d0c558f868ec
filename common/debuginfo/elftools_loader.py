"""Loads pyelftools if this Python has it; in GDB and LLDB, `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.libraries import is_in_working_folder

OLDEST, NEXT = (0, 30), (0, 33)
"""The first supported release and the first unsupported one: before 0.30 it does not resolve DWARF
5's indexed forms; 0.33 needs Python 3.10."""

ELFTOOLS_MISSING = (
    "Python's pyelftools is missing or does not load: "
    "pip install 'pyelftools>=0.30,<0.33' where findleaks is installed, or make venv in a checkout"
)  # a warning's end, after what is missing without it and a colon: one line, no full stop


def load_elftools() -> ModuleType | None:
    """The package `elftools` with `elftools.dwarf.dwarfinfo` loaded; None if it is missing, of
    another release, in the working folder only, or fails to load.
    Takes some 45 ms at first: call it where there is debug information, never while importing."""
    try:
        if is_in_working_folder("elftools"):
            return None
        import elftools
        import elftools.dwarf.dwarfinfo

        release = tuple(int(part) for part in elftools.__version__.split(".")[:2])
    except Exception:  # a broken install raises ImportError, AttributeError, SyntaxError…
        return None
    return elftools if OLDEST <= release < NEXT else None
