"""Loads capstone, if this Python has it; inside GDB and LLDB `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.errors import TargetError
from findleaks.libraries import is_in_working_folder

MAJOR = 5  # supported; 4 lacks instructions and details, 6 renames CS_ARCH_ARM64 and its registers

CAPSTONE_MISSING = (
    f"Python's capstone {MAJOR} is missing or does not load: "
    f"pip install 'capstone=={MAJOR}.*' where findleaks is installed, or make venv in a checkout"
)
"""Ends a warning, after what is missing without capstone and a colon; one line, no full stop."""


class CapstoneMissing(TargetError):
    """Code cannot be disassembled; the message is CAPSTONE_MISSING."""

    def __init__(self) -> None:
        super().__init__(CAPSTONE_MISSING)


def require_capstone() -> ModuleType:
    """The module `capstone`; raises CapstoneMissing if it does not load."""
    capstone = load_capstone()
    if capstone is None:
        raise CapstoneMissing
    return capstone


def load_capstone() -> ModuleType | None:
    """The module `capstone`, whose Cs works; None if it is missing, of another release, in the
    working folder, or fails to load. Takes some 50 ms the first time: call it where code has to be
    decoded, never while importing. Submodules (`capstone.x86_const`) may be imported after it."""
    try:
        if is_in_working_folder("capstone"):
            return None
        import capstone

        # The library may be of another release; a folder merely named capstone has none.
        ours = capstone.CS_API_MAJOR == capstone.cs_version()[0] == MAJOR
    except Exception:  # a broken install raises ImportError, OSError, AttributeError, SyntaxError…
        return None
    return capstone if ours else None
