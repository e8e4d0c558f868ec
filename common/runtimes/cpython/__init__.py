"""CPython: objects by type, the garbage collector's counters, interned strings, and tracemalloc's
tables, without symbols.

An object is a block of pymalloc's, or of malloc's if it is larger than 512 bytes or PYTHONMALLOC
says so. Objects in the interpreter's own data (static types, small integers, None) are not counted.
The objects of a free-threaded interpreter (3.13t and later) are different, and are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators import pymalloc
from findleaks.allocators.images import images
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import ManagedHeap, Runtime
from findleaks.target.base import Range, Target

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory

HEAP = ManagedHeap(("libpython", "python"), "CPython", "pymalloc")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """See base.Finder."""
    files = {region.start for region in target.regions() if region.writable and region.name.startswith("/")}
    for image in images(target):
        initialised = [Range(start, min(end, start + pymalloc.LOOK)) for start, end in image.data if start in files]
        metatype = pymalloc.type_of_types(target, engine, image, initialised)
        if metatype is not None:
            from findleaks.runtimes.cpython.instance import CPython

            return [CPython(target, engine, directory, image, metatype)]
    return []
