"""A core with a heap of libumem's, for there is no package of it: slabs as malloc() fills them, written from the documented structures.

Sizes are those of heap.c, and some buffers are free again. What it cannot show is how a real process scatters
its slabs: these are in the order of their lists.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
import elfcore
from umemimage import DATA, HEAP, PAGE, UmemImage

SIZES = (24, 32, 40, 48, 56, 64, 72, 96, 120, 136, 200, 280, 408, 504, 760, 760)
CLASSES = (8, 16, 32, *range(48, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, 1024, 128), 1152, 4096, 16384)
"""umem_alloc_sizes (umem.c) where words have 8 bytes, as far as sizes are needed."""

FREED = 40
"""Of so many slabs one has free buffers: few, as in the heaps that heap.c makes."""

TAGS, MAGIC = 16, 0x16BA7000
LIBRARY = "/usr/lib/libumem.so.1"


def write(path: Path, blocks: int) -> None:
    """The core of a process with about so many blocks in use."""
    rng = random.Random(7)
    image = UmemImage(classes=CLASSES, heap=(blocks * 600 // PAGE + 1024) * PAGE, internal=(blocks * 80 // PAGE + 256) * PAGE)
    wanted: dict[int, list[int]] = {}
    for size in rng.choices(SIZES, k=blocks):
        wanted.setdefault(next(size_class for size_class in CLASSES if size_class >= size + TAGS), []).append(size + TAGS)
    for bufsize, sizes in wanted.items():
        _fill(image, bufsize, sizes, rng)
    image.write()
    loads = [elfcore.Load(start, len(data) // PAGE * PAGE, bytes(data[: len(data) // PAGE * PAGE])) for start, data in image.memory.items()]
    mapped = [(DATA - 0x100000, DATA, 0, LIBRARY), (DATA, DATA + len(image.memory[DATA]), 0x100000, LIBRARY)]
    path.write_bytes(elfcore.core(loads, [elfcore.Task(100)], mapped=mapped))


def _fill(image: UmemImage, bufsize: int, sizes: list[int], rng: random.Random) -> None:
    """Slabs with buffers of these sizes, malloc's tag included."""
    cache, heap = image.named(f"umem_alloc_{bufsize}"), image.memory[HEAP]
    while sizes:
        slab = image.slab(cache)
        slab.free = rng.sample(range(slab.chunks), rng.randrange(slab.chunks)) if not rng.randrange(FREED) else []
        free = frozenset(slab.free)
        for index in range(slab.chunks):
            if index not in free and sizes:
                size = sizes.pop()
                at = slab.base - HEAP + index * cache.chunksize + TAGS - 8
                struct.pack_into("<II", heap, at, size, MAGIC - size)
            elif index not in free:
                slab.free.append(index)
