"""List the native libraries that a Java program loaded with System.load or System.loadLibrary, and
the functions of the JDK with which programs allocate native memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Module, Target
from findleaks.target.modules import DELETED

_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "[")
_JNI = "/jni/"  # in Debian, libraries of Java programs are in such folders of the system
_ENDS = (".so", ".dylib")
# Beginnings of names: the launcher of JDK 8 is not in the folder of libjvm
_OTHERS = ("libjli.", "libjemalloc", "libmimalloc", "libtcmalloc")

_LAUNCHER = "java"
_ARENAS_FROM = 22  # first version of the JDK in which java.lang.foreign is not a preview


def list_loaded_libraries(target: Target, libjvm: Module) -> list[str]:
    """Return the names of the libraries that are outside the folders of the JDK and of the system,
    without allocators. The files of libraries that were extracted from a jar are often deleted."""
    home = os.path.dirname(os.path.dirname(libjvm.path)) + "/"  # lib/server/libjvm.so
    found = []
    for module in target.modules():
        path = module.path.removesuffix(DELETED)
        name, is_system = os.path.basename(path), path.startswith(_SYSTEM) and _JNI not in path
        if name.endswith(_ENDS) and not is_system and not path.startswith(home) and not name.startswith(_OTHERS):
            found.append(name)
    return list(dict.fromkeys(found))


def list_allocating_functions(tables: Tables) -> Sequence[str]:
    """Return the functions with which a Java program allocates memory that no Cleaner frees; () if
    the process is not the program `java`: other programs may call malloc themselves."""
    names = {os.path.basename(module.path.removesuffix(DELETED)) for module in tables.target.modules()}
    if _LAUNCHER not in names:
        return ()
    found = ["sun.misc.Unsafe.allocateMemory()"]
    if (tables.int32("Abstract_VM_Version", "_vm_major_version") or 0) >= _ARENAS_FROM:
        found += ["java.lang.foreign.Arena.ofShared()", "java.lang.foreign.Arena.ofConfined()"]
    return found
