"""Describe a C structure by its fields, so that layouts need no offsets counted by hand."""

from __future__ import annotations

import struct
from functools import cached_property

SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "b": 1, "h": 2, "i": 4, "q": 8, "x": 1}
"""Bytes of the struct module's codes."""


class Record:
    """A structure of integers: the offset of each field by name, and the size.

    `fields` has the codes of the struct module in order, each with a name (except padding): "Q
    free, H used, 6x, Q size". A code may have a count ("10W fastbins"). W is a word of `word`
    bytes. Each field is aligned to its size, as in C, but no padding is added at the end."""

    def __init__(self, fields: str, word: int = 8) -> None:
        self.fields = fields.replace("W", "Q" if word == 8 else "I")
        self.offsets: dict[str, int] = {}
        self.size = 0
        for field in self.fields.split(","):
            code, *names = field.split()
            size = SIZES[code[-1]]
            offset = self.size + -self.size % size
            self.offsets.update(dict.fromkeys(names, offset))
            self.size = offset + int(code[:-1] or 1) * size

    @cached_property
    def form(self) -> struct.Struct:
        """The little-endian structure for the struct module, with its padding."""
        form, size = "<", 0
        for field in self.fields.split(","):
            code = field.split()[0]
            padding = -size % SIZES[code[-1]]
            form += f"{padding}x{code}"
            size += padding + int(code[:-1] or 1) * SIZES[code[-1]]
        return struct.Struct(form)

    def __getitem__(self, name: str) -> int:
        """Return the offset of a field in bytes. Raises KeyError."""
        return self.offsets[name]

    def get(self, name: str) -> int:
        """Return the offset of a field in bytes, or -1 if the structure does not have it."""
        return self.offsets.get(name, -1)

    def read(self, data: bytes, offset: int = 0) -> dict[str, int]:
        """Read the little-endian structure at `offset`. Return its fields by name. The structure
        must not contain arrays."""
        return dict(zip(self.offsets, self.form.unpack_from(data, offset)))
