"""Capstone, if this Python has it: on the command line, and inside GDB and LLDB (`findleaks.bootstrap` looks for it there)."""

from __future__ import annotations

import os.path
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType

MAJOR = 5
"""The release that findleaks is written for: 4 lacks instructions and details, 6 renames (CS_ARCH_ARM64, its registers)."""

CAPSTONE_MISSING = (
    f"Python's capstone {MAJOR} is missing or does not load: "
    f"pip install 'capstone=={MAJOR}.*' where findleaks is installed, or make venv in a checkout"
)
"""For a warning, behind what the answer lacks without it and a colon; one line, no full stop."""


def load_capstone() -> ModuleType | None:
    """The module `capstone`, of which Cs can be created; None if it is missing, of another release, or fails to load.

    One that lies in the working folder is no install, and is not loaded: LLDB has "." on sys.path, and a core may come with anything.

    Takes some 50 ms the first time: call it where code has to be decoded, never while importing. Submodules (`capstone.x86`) may be
    imported once it is there.
    """
    try:
        if "capstone" not in sys.modules and _in_working_folder():
            return None
        import capstone

        # The release of the shared library, which may be another's: of a folder that happens to be named capstone there is none.
        ours = capstone.CS_API_MAJOR == capstone.cs_version()[0] == MAJOR
    except Exception:  # whatever a broken install raises: ImportError, OSError of the library, AttributeError, SyntaxError
        return None
    return capstone if ours else None


def _in_working_folder() -> bool:
    """Whether `import capstone` would run a file that a relative entry of sys.path leads to, and no other entry."""
    spec = find_spec("capstone")
    if spec is None or spec.origin is None:
        return False
    relative = [entry for entry in sys.path if not os.path.isabs(entry)]
    absolute = [entry for entry in sys.path if os.path.isabs(entry)]
    return _origin(relative) == spec.origin != _origin(absolute)


def _origin(entries: list[str]) -> str | None:
    spec = PathFinder.find_spec("capstone", entries)
    return None if spec is None else spec.origin
