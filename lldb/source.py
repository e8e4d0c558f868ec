"""Source locations from LLDB's symbol files: files, lines, inlined functions."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import lldb
from findleaks.target.base import SourcePlace
from findleaks.target.image_target import ImageTarget

MAX_INLINED = 256  # Most functions that are inlined in each other at one address.

Opened = TypeVar("Opened", bound=ImageTarget)


class LldbSources:
    """The debug information that LLDB has loaded for one of its targets."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def places(self, address: int, build_id: str) -> Sequence[SourcePlace]:
        """See SourceLookup."""
        found = self._target.ResolveLoadAddress(address)
        if _build_id(found.GetModule()) != build_id:
            return ()
        entry = found.GetLineEntry()
        if not entry.IsValid() or not entry.GetLine():
            return ()
        place = _path(entry.GetFileSpec()), int(entry.GetLine())
        made: list[SourcePlace] = []
        block = found.GetBlock().GetContainingInlinedBlock()
        while block.IsValid() and len(made) < MAX_INLINED:
            made.append(SourcePlace(str(block.GetInlinedName() or ""), *place))
            place = _path(block.GetInlinedCallSiteFile()), int(block.GetInlinedCallSiteLine())
            block = block.GetParent().GetContainingInlinedBlock()
        return (*made, SourcePlace("", *place))


def _build_id(module: Any) -> str:
    return str(module.GetUUIDString() or "").replace("-", "").lower() if module.IsValid() else ""


def _path(spec: Any) -> str:
    return os.path.normpath(str(spec.fullpath)) if spec.IsValid() and spec.fullpath else ""


def with_sources(target: Any, opened: Opened) -> Opened:
    """The opened target, which uses the debug information of LLDB's `target`, and searches for
    debug files in LLDB's folders."""
    opened.debugger = LldbSources(target)
    result = lldb.SBCommandReturnObject()
    target.GetDebugger().GetCommandInterpreter().HandleCommand("settings show target.debug-file-search-paths", result)
    folders = re.findall(r'^\s*\[\d+\]: "?(/.*?)"?$', result.GetOutput() or "", re.MULTILINE)
    if folders:
        opened.separate.folders = list(dict.fromkeys([*folders, *opened.separate.folders]))
    return opened
