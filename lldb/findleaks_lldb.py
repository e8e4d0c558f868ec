"""findleaks for LLDB: `command script import` this, in ~/.lldbinit or by hand. Adds `leaks`."""

from __future__ import annotations

import os.path
import runpy
import sys
from typing import Any


def __lldb_init_module(debugger: Any, internal_dict: dict[str, Any]) -> None:
    """Register the commands. LLDB calls this after it has imported the file."""
    here = os.path.dirname(os.path.realpath(__file__))
    # LLDB put this folder on sys.path, where its files would be top-level modules for all code.
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]
    parent = os.path.dirname(here)
    # This is the folder in a checkout. If findleaks is installed, the folder is inside the package.
    package = os.path.join(parent, "common")
    bootstrap = os.path.join(package if os.path.isdir(package) else parent, "bootstrap.py")
    runpy.run_path(bootstrap)["install"]()

    import findleaks
    from findleaks.lldb.register import register

    internal_dict["findleaks"] = findleaks  # LLDB looks up the commands' classes there.
    register(debugger)
