"""Recognise managed heaps that findleaks does not read, by loaded files and by symbols.

Heaps in ANONYMOUS mappings appear as unattributed memory. Heaps IN_BLOCKS of malloc have an object
in each block, or many objects in large blocks. The collector's lists and tables refer to all
objects, so garbage counts as reachable. The names of files and symbols do not show which memory
belongs to a heap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from findleaks.engine.contract import Blocks
from findleaks.target.base import Range, Target
from findleaks.value_classes import NamedTuple


class Holder(NamedTuple):
    """A variable of the runtime, such as "field 1 of the module Leak".

    `objects`: the number of objects that the variable refers to, directly or through other objects.
    `blocks`: the number of malloc's blocks to which these objects refer, without the blocks that
    contain the objects. `bytes`: the size of these objects and blocks. If `is_whole` is false, the
    search stopped at a limit, and the numbers are too low."""

    name: str
    objects: int
    blocks: int
    bytes: int
    is_whole: bool


class UnreadHeap(NamedTuple):
    """A managed heap that is recognised but not read.

    `files`: prefixes of the names of loaded files. `symbol`: a symbol that is defined in programs
    that are statically linked with the runtime. It is looked up only in the program itself, because
    reading all symbol tables takes long. `start`: an address at which a region begins in every
    process of the runtime; 0 if there is none. `holders`: a module that names the variables; "" if
    none does."""

    owner: str  # in a sentence
    files: tuple[str, ...] = ()
    symbol: str = ""
    start: int = 0
    holders: str = ""


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
    UnreadHeap("SBCL", ("sbcl",), "gc_and_save"),
    UnreadHeap("Racket", ("racket",)),
    UnreadHeap("D", ("libdruntime", "libphobos2", "libgdruntime"), "_d_run_main"),
    # GHC 8.0 and newer: rts/posix/OSMem.c, osReserveHeapMemory
    UnreadHeap("Haskell", ("libHSrts",), "hs_init_ghc", start=0x4200000000),
)
IN_BLOCKS: tuple[UnreadHeap, ...] = (
    UnreadHeap("Lua", ("lua5", "lua-5", "lua.", "texlua")),
    UnreadHeap("Perl", ("perl",)),
    UnreadHeap("PyPy", ("libpypy",)),
    UnreadHeap("OCaml", ("ocaml",), "caml_startup", holders="findleaks.runtimes.ocaml.module_fields"),
    UnreadHeap("R", ("R.",)),
)
"""Lua and Perl count only if their reader found no objects. They are recognised only as the program
itself: if another program embeds them, most blocks belong to that program."""


def owners(target: Target, heaps: Sequence[UnreadHeap]) -> list[str]:
    """Return the owners of these heaps that are present in the process."""
    files = [module.path.rsplit("/", 1)[-1] for module in target.modules()]
    return list(dict.fromkeys(_find_heaps(target, files, heaps)))


def list_holders(owner: str, target: Target, blocks: Blocks, heaps: Sequence[Range], check: Callable[[], None]) -> list[Holder]:
    """Return the variables that refer to memory of a heap in IN_BLOCKS, the variable with the most
    bytes first; [] if they are not known. `heaps`: the memory of malloc. `check` is called
    regularly, to check for Ctrl-C."""
    module = next((one.holders for one in IN_BLOCKS if one.owner == owner), "")
    found: list[Holder] = import_module(module).list_holders(target, blocks, heaps, check) if module else []
    return found


def _find_heaps(target: Target, files: Sequence[str], heaps: Sequence[UnreadHeap]) -> Iterator[str]:
    for heap in heaps:
        by_file = bool(heap.files) and any(file.startswith(heap.files) or file == heap.files[0].rstrip(".") for file in files)
        program = os.path.basename(target.exe_path) or (files[0] if files else "")
        by_start = bool(heap.start) and any(region.start == heap.start for region in target.regions())
        if by_file or by_start or (heap.symbol and program and target.symbol(heap.symbol, program) is not None):
            yield heap.owner
