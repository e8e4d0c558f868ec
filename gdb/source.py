"""Source locations from GDB's symbol tables: files, lines, inlined functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional, TypeVar

import gdb
from findleaks.demangle import demangle
from findleaks.target.base import SourcePlace
from findleaks.target.image_target import ImageTarget

MAX_INLINED = 256  # Most functions that are inlined in each other at one address.

Opened = TypeVar("Opened", bound=ImageTarget)


class GdbSources:
    """The debug information that GDB has loaded for the selected program space."""

    def places(self, address: int, build_id: str) -> Sequence[SourcePlace]:
        """See SourceLookup."""
        try:
            found = gdb.find_pc_line(address)
            if found.symtab is None or not found.line or found.symtab.objfile.build_id != build_id:
                return ()
            place = _path(found.symtab), int(found.line)
            made = []
            for symbol in _find_inlined(address):
                made.append(SourcePlace(_name(symbol), *place))
                # For an inlined function, GDB's symbol has the location of the call.
                place = _path(symbol.symtab) if symbol.symtab is not None else "", int(symbol.line)
            return (*made, SourcePlace("", *place))
        except (gdb.error, RuntimeError, UnicodeDecodeError):
            return ()


def _find_inlined(address: int) -> list[Any]:
    """Symbols of the functions that are inlined at an address, the innermost first."""
    block: Optional[Any] = gdb.block_for_pc(address)
    functions: list[Any] = []
    while block is not None and not block.is_static and not block.is_global and len(functions) <= MAX_INLINED:
        if block.function is not None:
            functions.append(block.function)
        block = block.superblock
    return functions[:-1]


def _name(symbol: Any) -> str:
    linkage = str(symbol.linkage_name or symbol.name)
    return demangle(linkage) if linkage.startswith("_Z") else linkage


def _path(symtab: Any) -> str:
    name = str(symtab.filename)
    return os.path.normpath(name if name.startswith("/") else str(symtab.fullname()))


def with_sources(target: Opened) -> Opened:
    """The target, which uses GDB's debug information, and searches for debug files in GDB's
    folders."""
    folders = [folder for folder in str(gdb.parameter("debug-file-directory") or "").split(os.pathsep) if folder.startswith("/")]
    target.debugger = GdbSources()
    if folders:
        target.separate.folders = list(dict.fromkeys([*folders, *target.separate.folders]))
    return target
