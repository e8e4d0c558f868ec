"""Loads pyelftools if this Python has it; in GDB and LLDB, `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.libraries import in_working_folder

OLDEST, NEXT = (0, 30), (0, 33)
"""First supported and first unsupported release: before 0.30, indexed forms of DWARF 5 are not
resolved; 0.33 needs Python 3.10."""

ELFTOOLS_MISSING = (
    "Python's pyelftools is missing or does not load: "
    "pip install 'pyelftools>=0.30,<0.33' where findleaks is installed, or make venv in a checkout"
)  # reason that ends a warning about missing results: one line, no full stop


def load_elftools() -> ModuleType | None:
    """Load `elftools` with `elftools.dwarf.dwarfinfo`; None if it is missing, of another release,
    in the working folder only, or broken.
    The first call takes about 45 ms: call it when there is debug information, never at import."""
    try:
        if in_working_folder("elftools"):
            return None
        import elftools
        import elftools.dwarf.dwarfinfo

        release = tuple(int(part) for part in elftools.__version__.split(".")[:2])
    except Exception:  # a broken install raises ImportError, AttributeError, SyntaxError…
        return None
    return elftools if OLDEST <= release < NEXT else None
