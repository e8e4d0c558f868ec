"""Loads capstone, if this Python has it: on the command line, and inside GDB and LLDB (by findleaks.bootstrap's finder)."""

from __future__ import annotations

from types import ModuleType

from findleaks.errors import TargetError
from findleaks.libraries import in_working_folder

MAJOR = 5
"""The release that findleaks is written for: 4 lacks instructions and details, 6 renames (CS_ARCH_ARM64, its registers)."""

CAPSTONE_MISSING = (
    f"Python's capstone {MAJOR} is missing or does not load: "
    f"pip install 'capstone=={MAJOR}.*' where findleaks is installed, or make venv in a checkout"
)
"""For a warning, behind what the answer lacks without it and a colon; one line, no full stop."""


class CapstoneMissing(TargetError):
    """Code cannot be read; the message is CAPSTONE_MISSING."""

    def __init__(self) -> None:
        super().__init__(CAPSTONE_MISSING)


def require_capstone() -> ModuleType:
    """The module `capstone`; CapstoneMissing where `load_capstone` gives none."""
    capstone = load_capstone()
    if capstone is None:
        raise CapstoneMissing
    return capstone


def load_capstone() -> ModuleType | None:
    """The module `capstone`, of which Cs can be created; None if it is missing, of another release, or fails to load.

    One that lies in the working folder is not loaded.

    Takes some 50 ms the first time: call it where code has to be decoded, never while importing. Submodules
    (`capstone.x86_const`) may be imported once it is there.
    """
    try:
        if in_working_folder("capstone"):
            return None
        import capstone

        # The release of the shared library, which may be another's: of a folder that happens to be named capstone there is none.
        ours = capstone.CS_API_MAJOR == capstone.cs_version()[0] == MAJOR
    except Exception:  # whatever a broken install raises: ImportError, OSError of the library, AttributeError, SyntaxError
        return None
    return capstone if ours else None
