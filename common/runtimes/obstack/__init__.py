"""Read obstacks: pools of glibc and libiberty whose objects are freed in reverse order.

The functions of obstacks are also copied into programs, which can be stripped. Therefore obstacks
are recognised by their structures, which chunks.py describes. Two cheap checks tell whether a
process may have obstacks:

- the program itself imports a function of obstacks from glibc;
- one of the blocks that have the default size of a chunk begins like a chunk. If there are many
  such blocks, a sample of them is examined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.memory import Memory
from findleaks.target.modules import program_module
from findleaks.target.ranges import region_at

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Blocks, Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target

_IMPORTED = b"_obstack_newchunk"
_MOST_NAMES = 1 << 20  # bytes of the names of imported functions, and what precedes them in a file
_USUAL = 4056, 4112  # usable sizes of a block of 4064 bytes, the default size of a chunk
_MOST_USUAL, _SAMPLES = 1 << 16, 64


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find the obstacks of a process; see base.Finder."""
    imports = _imports_obstacks(target)
    if not imports and not _has_usual_chunks(target, directory.blocks):
        return []
    from findleaks.runtimes.obstack.chunks import ObstackReader
    from findleaks.runtimes.obstack.instance import Obstacks

    reader = ObstackReader(target, engine, directory.blocks)
    return [Obstacks(target, directory, reader)] if reader.obstacks or (imports and reader.chunks) else []


def _imports_obstacks(target: Target) -> bool:
    """Whether the program imports a function of obstacks. The names of imported functions are in
    its first segment."""
    module = program_module(target)
    region = region_at(target.regions(), module.start) if module is not None else None
    if region is None or module is None:
        return False
    end = min(region.end, module.start + _MOST_NAMES)
    return any(bytes(piece.data).find(_IMPORTED) >= 0 for piece in target.pieces(module.start, end))


def _has_usual_chunks(target: Target, blocks: Blocks) -> bool:
    indices, memory = blocks.of_sizes(*_USUAL, _MOST_USUAL), Memory(target)
    sample: Iterable[int] = indices[:: -(-len(indices) // _SAMPLES) or 1]
    places = ((blocks.address(index), blocks.size(index)) for index in sample)
    return any(0 <= start + size - (memory.word(start) or 0) < 4 * memory.size for start, size in places)
