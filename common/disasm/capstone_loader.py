"""Load capstone if this Python has it. Inside GDB and LLDB, `findleaks.bootstrap` finds it."""

from __future__ import annotations

from types import ModuleType

from findleaks.errors import TargetError
from findleaks.libraries import is_in_working_folder

MAJOR = 5  # supported; 4 lacks instructions and details, 6 renames CS_ARCH_ARM64 and registers

CAPSTONE_MISSING = (
    f"Python's capstone {MAJOR} is missing or does not load: "
    f"pip install 'capstone=={MAJOR}.*' where findleaks is installed, or make venv in a checkout"
)
"""Reason that ends a warning about missing results; one line, no full stop."""


class CapstoneMissing(TargetError):
    """Code cannot be disassembled: capstone is missing. The message is CAPSTONE_MISSING."""

    def __init__(self) -> None:
        super().__init__(CAPSTONE_MISSING)


def require_capstone() -> ModuleType:
    """Load the module `capstone`. Raises CapstoneMissing."""
    capstone = load_capstone()
    if capstone is None:
        raise CapstoneMissing
    return capstone


def load_capstone() -> ModuleType | None:
    """Load the module `capstone`; None if it is missing, of another release, in the working folder,
    or broken.
    The first call takes about 50 ms, so call it only when code must be decoded, never at import.
    Submodules (`capstone.x86_const`) can be imported after it."""
    try:
        if is_in_working_folder("capstone"):
            return None
        import capstone

        # The library may be of another release. A folder that happens to be named capstone has no
        # version.
        ours = capstone.CS_API_MAJOR == capstone.cs_version()[0] == MAJOR
    except Exception:  # a broken install raises ImportError, OSError, AttributeError, SyntaxError…
        return None
    return capstone if ours else None
