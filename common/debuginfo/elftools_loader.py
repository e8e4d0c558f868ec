"""Load pyelftools if this Python has it. In GDB and LLDB, `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.libraries import is_in_working_folder

OLDEST, NEXT = (0, 30), (0, 33)
"""The first supported and the first unsupported release. Before 0.30, indexed forms of DWARF 5 are
not resolved; 0.33 needs Python 3.10."""

ELFTOOLS_MISSING = (
    "Python's pyelftools is missing or does not load: "
    "pip install 'pyelftools>=0.30,<0.33' where findleaks is installed, or make venv in a checkout"
)  # reason that ends a warning about missing results: one line, no full stop


def load_elftools() -> ModuleType | None:
    """Load `elftools` with `elftools.dwarf.dwarfinfo`. Returns None if it is missing, broken, of an
    unsupported release, or only in the working directory.
    The first call takes about 45 ms. Call this when there is debug information, never at import."""
    try:
        if is_in_working_folder("elftools"):
            return None
        import elftools
        import elftools.dwarf.dwarfinfo

        release = tuple(int(part) for part in elftools.__version__.split(".")[:2])
    except Exception:  # a broken install raises ImportError, AttributeError, SyntaxError…
        return None
    return elftools if OLDEST <= release < NEXT else None
