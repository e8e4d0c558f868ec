"""The arenas of Perl 5 (5.36 to 5.40, 64-bit), read without symbols.

Perl divides blocks of malloc, which it calls arenas, into values (SVs) of 24 bytes, and into the
bodies of values and entries of hashes. All arenas are in lists, so malloc's blocks are always
reachable. layout.py describes the structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_images
from findleaks.allocators.perl.instance import PerlArenas
from findleaks.allocators.perl.layout import NAMED_HASHES, find_interpreter, find_interpreters_of_threads

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Engine
    from findleaks.target.base import Range, Target


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the arenas of each loaded Perl. See base.Finder."""
    if target.arch.word != 8:
        return []
    images = [image for image in find_images(target) if image.name.startswith(ONLY_IN[__name__])]
    found: dict[int, Allocator] = {}
    # The program refers to the interpreter of its libperl, too.
    for image in sorted(images, key=lambda image: not image.name.startswith("lib")):
        interpreter = find_interpreter(target, image)
        # Before 5.36, the bodies of named hashes had no arenas, and their members were elsewhere.
        known = interpreter is not None and any(one.type == NAMED_HASHES for one in interpreter.bodies)
        if interpreter is not None and known and interpreter.address not in found:
            others = find_interpreters_of_threads(target, interpreter) if interpreter.struct else ()
            found[interpreter.address] = PerlArenas(target, engine, image, interpreter, others)
    return list(found.values())
