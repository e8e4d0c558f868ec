"""Pools that the user describes in a file (--pools): where they are, their slabs and chunks.

file.py reads the file, pools.py finds the slabs, and instance.py makes an allocator of them, which
divides the blocks of the outer allocator into the pool's chunks. Nothing of this is imported
without such a file."""

from __future__ import annotations
