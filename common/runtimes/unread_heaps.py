"""Managed heaps that findleaks does not read, recognised by loaded files and by symbols.

In ANONYMOUS mappings: they show as unattributed memory. IN_BLOCKS of malloc: each object is a
block, or large blocks have many objects; the collector's own lists and tables refer to all of them,
so that garbage counts as reachable. Which memory it is, is not derived from these names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple


class UnreadHeap(NamedTuple):
    """`files`: how names of loaded files begin. `symbol`: one that programs have into which it is
    linked; only the program itself is searched, as reading all symbol tables takes long."""

    owner: str  # in a sentence
    files: tuple[str, ...] = ()
    symbol: str = ""


ANONYMOUS: tuple[UnreadHeap, ...] = (
    UnreadHeap("PHP", ("php", "libphp")),
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
"""Lua and Perl by the program itself: if another program embeds them, most blocks are its own."""


def owners(target: Target, heaps: Sequence[UnreadHeap]) -> list[str]:
    """Owners of these heaps that the process has."""
    files = [module.path.rsplit("/", 1)[-1] for module in target.modules()]
    return list(dict.fromkeys(_found(target, files, heaps)))


def _found(target: Target, files: Sequence[str], heaps: Sequence[UnreadHeap]) -> Iterator[str]:
    for heap in heaps:
        by_file = bool(heap.files) and any(file.startswith(heap.files) or file == heap.files[0].rstrip(".") for file in files)
        program = os.path.basename(target.exe_path) or (files[0] if files else "")
        if by_file or (heap.symbol and program and target.symbol(heap.symbol, program) is not None):
            yield heap.owner
