"""Structures that programs refer to by interior pointers: hash tables of Rust and Abseil, chunks of
arenas, stacks and frames of suspended coroutines, values of Rust's Arc and Rc, arrays and objects
of PHP, memory that the program aligned itself, nodes with tags in the pointers to them, nodes of
lists and trees whose links are inside the objects, exceptions of C++.

An interior pointer to one of these structures counts as a start reference if the bytes around its
target, or the bytes around the pointer itself, prove the structure. The proofs are in
common/native/interior_{tables,chunks,stacks,counted,aligned,tagged,php,links,exceptions}.c."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Protocol

ROW = 6
"""Words of a row of `Examination.list_accepted`: Structure, block index, offset of the pointer in
the block, address where the pointer is stored (0: unknown), number of entries and capacity (tables;
else 0)."""


class Structure(IntEnum):
    """The data structures that interior pointers are recognised to refer to."""

    HASHBROWN = 1  # hash table of Rust: HashMap, HashSet
    SWISS_TABLE = 2  # hash table of Abseil: flat_hash_map, node_hash_map …
    CHUNK_AT_END = 3  # std::pmr::monotonic_buffer_resource
    SAVED_CONTEXT = 4  # stack of a suspended coroutine (Boost.Context)
    COROUTINE_FRAME = 5  # C++20
    COUNTED_VALUE = 6  # Rust: Arc::into_raw, Rc::into_raw
    PHP_ARRAY = 7  # PHP: zend_array
    PHP_ARGUMENTS = 8  # PHP: zend_internal_arg_info[], zend_arg_info[]
    ALIGNED = 9  # memory that a program aligned; the address of the block precedes it
    PHP_OBJECT = 10  # PHP: zend_object after the data of an internal class
    TAGGED_START = 11  # the pointer has tags in its lowest bits
    LINK = 12  # the pointer refers to the links of a list or tree inside an object
    EXCEPTION = 13  # C++: std::exception_ptr, caught exceptions
    STRING = 14  # std::string with a header, libstdc++'s old ABI
    BUMP_CHUNK = 15  # Rust: bumpalo


class Examination(Protocol):
    """An examination of interior references. References to a recognised structure become start
    references. `Interiors.promote` then marks the blocks that these references reach."""

    def step(self, budget: int) -> bool:
        """Examine the next `budget` references. Return True when all are examined."""
        ...

    def list_accepted(self) -> array[int]:
        """Return rows ("Q", see ROW) of the accepted references, in the order of recording."""
        ...
