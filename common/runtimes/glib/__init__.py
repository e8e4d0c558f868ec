"""Read GLib and GObject: instances by type, signal handlers, variants; see instance.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find GLib in a process that loaded it; see base.Finder."""
    if target.arch.word != 8:
        return []
    from findleaks.runtimes.glib.instance import GLib

    made = GLib(target, engine, directory)
    return [made] if made.names else []
