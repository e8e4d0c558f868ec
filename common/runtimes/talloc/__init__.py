"""Read the chunks of talloc (libtalloc 2), by name. Samba and sssd use talloc."""

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
    """Find talloc in a process that loaded libtalloc; see base.Finder."""
    from findleaks.runtimes.talloc.instance import Talloc

    if target.arch.word != 8:
        return []
    made = (Talloc(target, engine, directory, module) for module in find_modules(target, ONLY_IN[__name__]))
    return [one for one in made if one.chunks]
