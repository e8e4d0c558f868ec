"""Find the source of code by address: files, lines and inlined functions.

This uses debug files of this machine, and of debuginfod servers if the environment names such
servers. A debugger that has loaded the same file is used only if the debug files have nothing, or
if they lack the content of .dwo files. Thus frames are the same with and without a debugger. (If
several lines have the same address, GDB uses one that is marked as a statement; binutils and LLDB
use the last. LLDB supports neither dwz files nor linkage names of inlined functions.) The modules
that read DWARF are imported at their first use, because importing them takes longer than naming
most stacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.errors import Interrupted
from findleaks.target.base import Module, SourcePlace, Target
from findleaks.target.ranges import region_at
from findleaks.target.separate import has_debug_info

if TYPE_CHECKING:
    from findleaks.debuginfo.debuginfod import Client
    from findleaks.debuginfo.files import DebugFiles
    from findleaks.debuginfo.located import Located

Progress = Callable[[str, float], None]
"""A progress callback. It is called with (phase, fraction done), and raises Interrupted if the user
asked to stop."""


class Sources:
    """Looks up the source files and lines of a target's code. `warnings` has a line for each part
    of the debug information that could not be read."""

    def __init__(self, target: Target, files: Optional[Callable[[], DebugFiles]] = None, progress: Optional[Progress] = None) -> None:
        """`files`: a function that opens the target's debug files. Pass it if other readers share
        these files."""
        self._target, self._files, self._progress = target, files, progress or self._poll
        self._modules: Optional[list[Module]] = None
        self._known: dict[int, Sequence[SourcePlace]] = {}
        self._located: dict[int, Sequence[Located]] = {}
        self._client: Optional[Client] = None
        # What is missing and why; the key is the start of a module
        self._unread: dict[int, str] = {}
        self._by_debugger: set[int] = set()  # starts of modules whose sources the debugger has

    @property
    def warnings(self) -> list[str]:
        unread = (text for start, text in self._unread.items() if start not in self._by_debugger)
        return [*dict.fromkeys(unread), *(self._client.warnings if self._client is not None else ())]

    def at(self, address: int) -> Sequence[SourcePlace]:
        """Return the functions at an address: inlined ones, innermost first, then the function that
        contains the code. Returns () if nothing is known. To look up a caller, pass an address
        inside its call instruction."""
        if address not in self._known:
            self._known[address] = self._look_up(address)
        return self._known[address]

    def _look_up(self, address: int) -> Sequence[SourcePlace]:
        if self._modules is None:
            self._modules = sorted(self._target.modules(), key=lambda module: module.start)
        module = region_at(self._modules, address)
        if module is None or not module.path.startswith("/"):
            return ()
        debugger = self._target.debugger if module.build_id else None
        found = self._read(module, address)
        if debugger is not None and (not found or module.start in self._unread):
            known = debugger.places(address, module.build_id)
            if known:
                self._by_debugger.add(module.start)
                return known
        return found

    def _read(self, module: Module, address: int) -> Sequence[SourcePlace]:
        """Look up an address in the module's debug files."""
        if module.start not in self._located:
            self._located[module.start] = self._open(module)
        known = (located.at(address - module.bias) for located in self._located[module.start])
        *inlined, own = next((found for found in known if found), ()) or (None,)
        if own is None:
            return ()
        return (*inlined, own._replace(start=own.start + module.bias if own.start else 0))

    def _open(self, module: Module) -> Sequence[Located]:
        name = os.path.basename(module.path)
        if not self.has_debug_file(module):
            return ()
        from findleaks.debuginfo.located import Located

        files = self._debug_files()
        found = [Located(file) for file in files.of(module)]
        if files.unreadable:
            from findleaks.debuginfo.elftools_loader import ELFTOOLS_MISSING

            self._unread[module.start] = f"lines and inlined functions are not shown: {ELFTOOLS_MISSING}"
        for one in found:
            if one.file.ask(one.file.split, False):
                split = "debug information in .dwo files (-gsplit-dwarf) is not read"
                self._unread[module.start] = f"inlined functions of {name} are not shown: {split}"
        return found

    def has_debug_file(self, module: Module, download: bool = True) -> bool:
        """Whether a module has debug information: on this machine, or from a server if `download`
        is set."""
        name = os.path.basename(module.path)
        return any(map(has_debug_info, self._target.debug_data(module))) or (download and self._is_downloaded(module, name))

    def _debug_files(self) -> DebugFiles:
        from findleaks.debuginfo.files import DebugFiles

        if self._files is None:
            made = DebugFiles(self._target, self._progress)
            self._files = lambda: made
        return self._files()

    def _is_downloaded(self, module: Module, name: str) -> bool:
        """Whether the module's debug file came from a server that the environment names. If so, it
        is used."""
        if not os.environ.get("DEBUGINFOD_URLS") or not module.build_id:
            return False
        if self._client is None:
            from findleaks.debuginfo.debuginfod import Client

            self._client = Client()
        return self._client.debug_file(
            module.build_id,
            name,
            lambda path: self._target.add_debug_file(module, path),
            lambda part: self._progress(f"downloading {name} from debuginfod", part),
        )

    def _poll(self, phase: str, part: float) -> None:
        if self._target.is_interrupted():
            raise Interrupted
