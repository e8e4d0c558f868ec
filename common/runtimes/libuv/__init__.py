"""Read the handles and requests of libuv, by type and callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.images import find_modules
from findleaks.runtimes.directory import ONLY_IN

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find libuv in a process that loaded it as a library; see base.Finder."""
    from findleaks.runtimes.libuv.instance import Libuv

    if target.arch.word != 8:
        return []
    made = (Libuv(target, engine, directory, module) for module in find_modules(target, ONLY_IN[__name__]))
    return [one for one in made if one.loops]
