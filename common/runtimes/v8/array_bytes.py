"""The key of Type.own for arrays of JavaScript objects."""

ARRAY_BYTES = "array_bytes"
"""A key of Type.own: the bytes of the arrays that belong to the objects of the type. They store
properties, elements, and the entries of maps and sets."""
