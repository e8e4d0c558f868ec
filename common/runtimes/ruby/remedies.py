"""What frees the native memory of types of Ruby."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CLASS, SINGLETON = "Class", "Class (singleton)"
_FEWER_CLASSES = (
    "create fewer classes (Class.new) and fewer objects with methods of their own (OpenStruct, extend, define_singleton_method): "
    "each has a class with tables of methods"
)
REMEDIES: Mapping[str, Sequence[str]] = {SINGLETON: (_FEWER_CLASSES,), CLASS: (_FEWER_CLASSES,)}
"""Suggestions by the name of the type."""
