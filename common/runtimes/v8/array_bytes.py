"""Names for memory of JavaScript objects that is not in the objects themselves."""

ARRAY_BYTES = "array_bytes"
"""A key of Type.own: the bytes of the arrays that belong to the objects of the type. They store
properties, elements, and the entries of maps and sets."""

STORE = "ArrayBuffer (its memory)"
"""The name of the type of the memory of ArrayBuffers, which V8 allocates outside its heap."""


def name_store(file: str) -> str:
    """Return the name of memory of ArrayBuffers that the addon in `file` frees; "" for V8 and
    Node."""
    return f"ArrayBuffer (memory of {file})" if file else STORE


def is_store(name: str) -> bool:
    """Whether a name is one of memory of ArrayBuffers."""
    return name.startswith("ArrayBuffer (")
