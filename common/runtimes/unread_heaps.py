"""Recognise managed heaps that findleaks does not read, by loaded files and by symbols.

Heaps in ANONYMOUS mappings appear as unattributed memory. Heaps IN_BLOCKS of malloc have an object
in each block, or many objects in large blocks. The collector's lists and tables refer to all
objects, so garbage counts as reachable. The names of files and symbols do not show which memory
belongs to a heap."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple


class UnreadHeap(NamedTuple):
    """A managed heap that is recognised but not read.

    `files`: prefixes of the names of loaded files. `symbol`: a symbol that is defined in programs
    that are statically linked with the runtime. It is looked up only in the program itself, because
    reading all symbol tables takes long."""

    owner: str  # in a sentence
    files: tuple[str, ...] = ()
    symbol: str = ""


ANONYMOUS: tuple[UnreadHeap, ...] = (
    UnreadHeap("Erlang", ("beam.",)),
    UnreadHeap("the Boehm collector", ("libgc.so",), "GC_init"),
    UnreadHeap("Nim", (), "NimMain"),
    UnreadHeap("LuaJIT", ("luajit", "libluajit")),
    UnreadHeap("Mono", ("mono-sgen", "libmonosgen")),
    UnreadHeap(".NET", ("libcoreclr",)),
    UnreadHeap("Julia", ("libjulia",)),
    UnreadHeap("SpiderMonkey", ("libmozjs",)),
    UnreadHeap("JavaScriptCore", ("libjavascriptcore",)),
    UnreadHeap("OCaml", ("ocamlrun",), "caml_startup"),
)
IN_BLOCKS: tuple[UnreadHeap, ...] = (
    UnreadHeap("Lua", ("lua5", "lua-5", "lua.", "texlua")),
    UnreadHeap("Perl", ("perl",)),
    UnreadHeap("PyPy", ("libpypy",)),
    UnreadHeap("OCaml", ("ocaml",), "caml_startup"),
)
"""Lua and Perl count only if their reader found no objects. They are recognised only as the program
itself: if another program embeds them, most blocks belong to that program."""


def owners(target: Target, heaps: Sequence[UnreadHeap]) -> list[str]:
    """Return the owners of these heaps that are present in the process."""
    files = [module.path.rsplit("/", 1)[-1] for module in target.modules()]
    return list(dict.fromkeys(_found(target, files, heaps)))


def _found(target: Target, files: Sequence[str], heaps: Sequence[UnreadHeap]) -> Iterator[str]:
    for heap in heaps:
        by_file = bool(heap.files) and any(file.startswith(heap.files) or file == heap.files[0].rstrip(".") for file in files)
        program = os.path.basename(target.exe_path) or (files[0] if files else "")
        if by_file or (heap.symbol and program and target.symbol(heap.symbol, program) is not None):
            yield heap.owner
