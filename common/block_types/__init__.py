"""Determine what a block contains by its first words: a C++ class, a function pointer, an array, a
string."""

from __future__ import annotations

from findleaks.block_types.naming import Types

__all__ = ["Types"]
