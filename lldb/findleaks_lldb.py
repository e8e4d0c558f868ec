"""findleaks for LLDB: `command script import` this file, from ~/.lldbinit or by hand.

It adds the command `leaks`; `help leaks` says more.
"""

from __future__ import annotations

import os.path
import runpy
import sys
from typing import Any


def __lldb_init_module(debugger: Any, internal_dict: dict[str, Any]) -> None:
    """LLDB calls this once it has imported the file."""
    here = os.path.dirname(os.path.realpath(__file__))
    # LLDB put our folder on sys.path, where its files would be top-level modules to everybody in this LLDB.
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.realpath(entry) != here]
    parent = os.path.dirname(here)
    package = os.path.join(parent, "common")  # of a checkout; installed, this folder lies in the package
    bootstrap = os.path.join(package if os.path.isdir(package) else parent, "bootstrap.py")
    runpy.run_path(bootstrap)["install"]()

    import findleaks
    from findleaks.lldb.register import register

    internal_dict["findleaks"] = findleaks  # LLDB looks up the classes of commands there
    register(debugger)
