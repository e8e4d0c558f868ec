"""Find a Python interpreter for helper programs, which outlive findleaks or run separately from
it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Optional


def interpreter() -> Optional[str]:
    """Return the path of a Python 3; None if there is none. sys.executable is not always usable,
    because in a debugger it may name the debugger."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (os.path.join(sys.base_prefix, "bin", name), shutil.which(name), shutil.which("python3")):
        if path and os.access(path, os.X_OK):
            return path
    return None
