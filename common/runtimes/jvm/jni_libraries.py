"""List the native libraries that a Java program loaded with System.load or System.loadLibrary."""

from __future__ import annotations

import os

from findleaks.target.base import Module, Target
from findleaks.target.modules import DELETED

_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "[")
_ENDS = (".so", ".dylib")


def list_loaded_libraries(target: Target, libjvm: Module) -> list[str]:
    """Return their names: libraries that are neither in the folder of the JDK nor in a folder of
    the system. The files of libraries that were extracted from a jar are often deleted."""
    home = os.path.dirname(os.path.dirname(libjvm.path)) + "/"  # lib/server/libjvm.so
    found = []
    for module in target.modules():
        path = module.path.removesuffix(DELETED)
        if path.endswith(_ENDS) and not path.startswith((home, *_SYSTEM)):
            found.append(os.path.basename(path))
    return list(dict.fromkeys(found))
