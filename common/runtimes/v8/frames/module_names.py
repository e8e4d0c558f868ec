"""Read the names of functions in the bytes of a WebAssembly module.

Source: WebAssembly core specification, "Binary Format" (sections) and appendix "Custom Sections"
(the section "name", whose subsection 1 has the names of functions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from findleaks.allocators.memory import Memory
from findleaks.target.encoded_numbers import uleb128

_CUSTOM, _NAME, _FUNCTIONS = 0, b"name", 1
_HEADER, _LONGEST = 8, 10  # bytes of the module's header; of a section's identifier and size
_MOST_SECTIONS, _MOST_BYTES = 1 << 12, 1 << 26


def read_function_names(memory: Memory, start: int, size: int) -> Mapping[int, str]:
    """Return the names of functions by index; {} if the module has none, or is damaged. `start`,
    `size`: the bytes of the module."""
    at, end = start + _HEADER, start + size
    for _ in range(_MOST_SECTIONS):
        head = memory.read(at, min(_LONGEST, end - at)) if at < end else b""
        if not head:
            break
        try:
            length, first = uleb128(head, 1)
        except ValueError:
            break
        at += first
        if head[0] == _CUSTOM and 0 < length <= min(_MOST_BYTES, end - at):
            body = memory.read(at, length)
            if body[1 : 1 + len(_NAME)] == _NAME and body[0] == len(_NAME):
                try:
                    return dict(_iterate_names(body, 1 + len(_NAME)))
                except ValueError:
                    break
        at += length
    return {}


def _iterate_names(body: bytes, at: int) -> Iterator[tuple[int, str]]:
    """Yield the index and the name of each function. Names that are not UTF-8 are left out. Raises
    ValueError if the section is damaged."""
    while at < len(body):
        kind = body[at]
        length, at = uleb128(body, at + 1)
        end = at + length
        if kind == _FUNCTIONS:
            count, at = uleb128(body, at)
            for _ in range(count):
                index, at = uleb128(body, at)
                size, at = uleb128(body, at)
                if at + size > len(body):
                    raise ValueError
                try:
                    yield index, body[at : at + size].decode()
                except UnicodeDecodeError:
                    pass
                at += size
            return
        at = end
