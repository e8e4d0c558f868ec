"""Explain the native memory of a Go program that calls C (cgo): the path to an object that refers
to it, and the functions of the program that allocate it.

cgo makes a Go function for each C function that the program calls: main._Cfunc_parse for C.parse.
C.CString, C.CBytes and C.malloc call main._cgo_cmalloc; the compiler may inline the function for
C.malloc.

Source: Go 1.18 to 1.26, src/cmd/cgo/out.go (writeDefsFunc, builtinDefs, cMallocDefGo)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.formatting import number
from findleaks.runtimes.base import Holders
from findleaks.runtimes.go.code_references import find_calls
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.pclntab import FunctionTable, Place
from findleaks.target.base import SourcePlace, Target

FREE = "free memory of C with C.free, or the function of the C library for it, when nothing needs the object that refers to it"

_STUB = re.compile(r"\._(?:Cfunc_|C2func_|cgo_cmalloc(?![^\0]))")
_NAMES = {"_CMalloc": "malloc"}  # of cgo's functions
_STRINGS = ("CString",)
_BYTES, _MALLOCS = "CBytes", ("malloc", "calloc", "realloc")
_ALLOCATING = (*_STRINGS, _BYTES, *_MALLOCS, "strdup", "strndup")
_SUFFIX = re.compile(r"_(?:t|s|st)$")  # of names of types in C
_MAKING = re.compile(r"new|alloc|create|init|open|parse|dup|load|make|build|read|copy|clone|start|compile", re.IGNORECASE)
_ENDING = re.compile(r"free|delete|destroy|release|close|unref|clear|stop|end|finish", re.IGNORECASE)
_MOST_OBJECTS = 1 << 10  # objects of a type that are examined
_MOST_CALLS = 3  # calls that a sentence names


class NativeOwners:
    """The Go objects that refer to native memory, and the allocators' blocks."""

    def __init__(self, holders: Holders, memory: Memory, blocks: Blocks) -> None:
        self.holders, self._memory, self._blocks = holders, memory, blocks

    def find_example(self, name: str) -> Optional[int]:
        """Return the address of a live object of the type `name` that refers to native memory. Of
        the objects that refer to blocks of the size that takes the most memory, return the middle
        one."""
        one = self.holders
        numbers = {kind for kind in range(one.garbage) if one.names[kind] == name}
        found = [(address, size) for address, size, kind in zip(one.addresses, one.sizes, one.types) if kind in numbers]
        by_size: dict[int, list[int]] = {}
        for address, size in found[:: -(-len(found) // _MOST_OBJECTS) or 1]:
            word = next(self._native_words(address, size), None)
            if word is not None:
                by_size.setdefault(word[1], []).append(address)
        most = max(by_size.items(), key=lambda one: (one[0] * len(one[1]), one[0]), default=(0, []))[1]
        return most[len(most) // 2] if most else None

    def describe(self, graph: GoGraph, address: int) -> str:
        """Return the path from a root to the object at `address`, its first field that refers to
        native memory, and the size of this memory; "" if no path is known."""
        path, found = graph.describe_example(address), graph.find(address)
        at = bisect_left(self.holders.addresses, address)
        is_known = at < len(self.holders.addresses) and self.holders.addresses[at] == address
        word = next(self._native_words(address, self.holders.sizes[at]), None) if path and is_known else None
        if found is None or word is None:
            return path
        # The block may begin with a header.
        field = graph.name_member(found.block, address + word[0] - found.address)
        return f"{path}{field if field.startswith('.') else ''} → block of {number(word[1])} B"

    def _native_words(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the offset of each word of an object that points into a block in use, and the size
        of the block."""
        for at, word in enumerate(self._memory.words(address, size // 8) or ()):
            found = self._blocks.lookup(word) if word else None
            if found is not None and found[3] == State.IN_USE:
                yield 8 * at, found[2]


def list_allocating_calls(target: Target, tables: Sequence[FunctionTable], is_text: bool, type_name: str, has_parts: bool) -> list[str]:
    """Return the calls of the program that may have allocated native memory, such as "C.CString in
    main.query (main.go:57)": at most three. See Runtime.allocating_calls and choose_calls.

    Functions that certainly allocate are first. If the blocks have a type or parts, those of the C
    code are first: Go's code rarely builds structures of C."""
    found: dict[tuple[str, str], str] = {}
    for table in tables:
        stubs = table.entries_named(_STUB)
        for place, entry in find_calls(target, table.module, stubs) if stubs else ():
            called = _name_call(table.places(place), stubs[entry])
            if called is not None:
                name, caller = called
                where = SourcePlace(caller.function, caller.file, caller.line).short()
                found.setdefault((name, caller.function), f"C.{name} in {caller.function} ({where})")
    chosen = sorted(choose_calls(found, is_text, type_name, has_parts), key=lambda key: _rank(key, bool(type_name) or has_parts))
    return [found[key] for key in chosen][:_MOST_CALLS]


def choose_calls(found: Iterable[tuple[str, str]], is_text: bool, type_name: str, has_parts: bool) -> Collection[tuple[str, str]]:
    """Return those of some calls that may have allocated blocks with text, or objects of a type, or
    other blocks. A call is the C function, and the caller. `has_parts`: whether the blocks refer to
    others, which copies of Go's bytes do not.

    If no function certainly fits, functions whose names do not show what they do are added, but
    only if they are few. For blocks without a type, they are not added if the name of another
    function shows that it makes objects, such as image_new."""
    every = list(found)
    known = [key for key in every if key[0] in _ALLOCATING or _MAKING.search(key[0])]
    certain = _choose_certain(known, is_text, type_name)
    if certain:
        return certain
    likely: Sequence[tuple[str, str]] = known
    if type_name:
        likely = _choose_types(known, type_name)
    elif not is_text:
        likely = [key for key in known if key[0] not in _STRINGS and not (has_parts and key[0] == _BYTES)]
    unknown = [key for key in every if key not in known and not _ENDING.search(key[0])]
    fits = bool(likely) if is_text else not type_name and any(key[0] not in _ALLOCATING for key in likely)
    return [*likely, *unknown] if len(unknown) <= _MOST_CALLS and not fits else likely


def _choose_certain(known: Sequence[tuple[str, str]], is_text: bool, type_name: str) -> Sequence[tuple[str, str]]:
    """Return the calls that make strings, for blocks with text, or those that have the type in
    their names."""
    if not type_name:
        return [key for key in known if is_text and key[0] in _STRINGS]
    word = _SUFFIX.sub("", type_name.partition("<")[0].rpartition("::")[2].lower()).replace("_", "")
    flat = {key: key[0].replace("_", "").lower() for key in _choose_types(known, type_name)}
    named = [key for key in flat if word in flat[key]]
    # "parser_run" contains "parse", but does not create a Parser.
    return [key for key in named if _MAKING.search(flat[key].replace(word, ""))] or named


def _choose_types(known: Sequence[tuple[str, str]], type_name: str) -> Sequence[tuple[str, str]]:
    """Return the calls that may make objects of a type."""
    # Only C++ has namespaces and templates, and its objects are not allocated with malloc.
    is_class = "::" in type_name or "<" in type_name
    return [key for key in known if key[0] not in _ALLOCATING or (not is_class and key[0] in _MALLOCS)]


def _name_call(places: Sequence[Place], stub: str) -> Optional[tuple[str, Place]]:
    """Return the C function that a call reaches, and the caller. `places`: the functions at the
    call, which may be inlined; `stub`: the Go function that is called. Return None for calls within
    cgo's own functions."""
    names = [stub, *(one.function for one in places)]
    inner = [name for name in names if _STUB.search(name)][-1]
    caller = next((one for one in places if not _STUB.search(one.function)), None)
    name = inner[_STUB.search(inner).end() :]  # type: ignore[union-attr]
    name = _NAMES.get(name, name or "malloc")
    return (name, caller) if caller is not None else None


def _rank(key: tuple[str, str], is_structure: bool) -> tuple[int, str, str]:
    name, function = key
    other = -1 if is_structure else len(_ALLOCATING)
    return _ALLOCATING.index(name) if name in _ALLOCATING else other, name, function
