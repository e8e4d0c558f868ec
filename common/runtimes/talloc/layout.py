"""Chunks of talloc: the header (struct talloc_chunk), and references to chunks.

Source: the headers that libtalloc 2.1 to 2.4 write in 64-bit programs, and talloc_reference_handle
of talloc.c. The four low bits of `flags` are flags. The others are a number that the library
chooses when it is loaded."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple

HEADER = 96  # bytes before the program's memory
FORM = "I4xQ16xQQ8xQQ16x"  # flags, next, child, refs, name, size
NEXT = 8  # offset of `next`
NEXT_WORD, PREVIOUS_WORD, PARENT_WORD, CHILD_WORD, REFERENCES_WORD = 1, 2, 3, 4, 5
"""Words of a header."""
RELATIVE_WORDS = NEXT_WORD, PREVIOUS_WORD, PARENT_WORD, CHILD_WORD, REFERENCES_WORD
"""Words of a header that refer to other chunks."""
HANDLE_WORDS = 0, 1  # words of talloc_reference_handle: the next and the previous one of the chunk
HANDLE_TO = 2  # the word with the address of the memory that it refers to
FREED_MAGIC, MAJOR = 0xE814EC70, 2 << 24
"""`flags` of a chunk that was freed contain FREED_MAGIC, plus the version of talloc: the major
version in the highest byte, and then the minor version and the release."""
REFERENCE_NAME = 1  # in place of the address of a name: the chunk is a reference to another one


class Chunk(NamedTuple):
    """A chunk in the block with index `block`.

    - `address`: of its header.
    - `name`: address of its name.
    - `size`: the bytes that the program requested.
    - `next`, `child`: addresses of the headers of the next chunk of its parent, and of its first
      child, or 0.
    - `references`: the address of the first talloc_reference_handle that refers to it, or 0.
    - `is_freed`: it is a pool that was freed while chunks inside it were in use. `name` is the
      place of the call that freed it."""

    block: int
    address: int
    name: int
    size: int
    next: int
    child: int
    references: int
    is_freed: bool = False
