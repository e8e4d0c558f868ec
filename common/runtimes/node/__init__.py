"""Read Node.js: V8's heap, JavaScript objects by constructor, external memory, and the C++ objects
that JavaScript objects own, by class, with their native memory.

Tested with Node 12 to 24. Offsets come from V8's code. Classes come from the symbols of vtables,
which the official binaries have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.runtimes.managed_heap import ManagedHeap

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.runtimes.finding import Finding
    from findleaks.target.base import Module, Target
    from findleaks.unwind.managed_frames import ManagedFrames

# Minimum size in bytes of a file that may contain V8; symbols of smaller files are not searched.
LEAST = 16 << 20
HEAP = ManagedHeap(("node",), "V8")


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find a Node.js in the process; see base.Finder."""
    module = _find_module(target)
    if module is None:
        return []
    from findleaks.runtimes.node.instance import Node

    return [Node(target, engine, directory, module)]


def find_frames(target: Target) -> Optional[ManagedFrames]:
    """Find the frames of JavaScript functions; see directory.find_frames."""
    if target.arch.name != "x86-64" or _find_module(target) is None:
        return None
    from findleaks.runtimes.v8.frames.reader import find_frame_reader

    return find_frame_reader(target)


def _find_module(target: Target) -> Optional[Module]:
    """Return a loaded file that contains V8."""
    asked: set[str] = set()
    for module in target.modules():
        if module.end - module.start < LEAST or _name(module) in asked:
            continue
        asked.add(_name(module))
        # The names are imported only if a file is large enough to be Node.
        from findleaks.runtimes.node.symbols import ADJUST, SPACES

        if any(target.symbol(name, _name(module)) is not None for name in (ADJUST, SPACES)):
            return module
    return None


def findings(target: Target) -> Iterator[Finding]:
    """Yield findings on isolates with many handles, for any V8 whose code is known, not only
    Node's."""
    from findleaks.runtimes.v8.findings import hoarded_handles  # only `verdict` needs it

    return hoarded_handles(target)


def _name(module: Module) -> str:
    return module.path.rsplit("/", 1)[-1]
