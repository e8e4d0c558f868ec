"""Open the files with debug information of a target, each once per session."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.debuginfo.dwarf import DebugFile, Progress, open_dwarf
from findleaks.debuginfo.elftools_loader import ELFTOOLS_MISSING, load_elftools
from findleaks.errors import TargetError
from findleaks.target.base import Module, Target
from findleaks.target.separate import alternate_link, has_debug_info


class DebugFiles:
    """Files with debug information, by module. `warning`: one line that explains why names are
    missing although they exist; "" if there is no reason. `unreadable`: whether there are files
    that cannot be read because pyelftools is missing."""

    def __init__(self, target: Target, progress: Progress = lambda phase, part: None) -> None:
        self._target, self._progress = target, progress
        self._opened: dict[int, Sequence[DebugFile]] = {}
        self.warning = ""
        self.unreadable = False

    def of(self, module: Module) -> Sequence[DebugFile]:
        """Return the files of a module: its own file, and the separate file for its build-id or
        .gnu_debuglink."""
        if module.start not in self._opened:
            self._opened[module.start] = self._open(module)
        return self._opened[module.start]

    def for_members(self, module: Module) -> Sequence[DebugFile]:
        """Return the same files as `of`. Sets `warning` if they cannot be read."""
        found = self.of(module)
        if self.unreadable:
            self.warning = f"members of variables have no names: {ELFTOOLS_MISSING}"
        return found

    def _open(self, module: Module) -> Sequence[DebugFile]:
        found = []
        for data in self._target.debug_data(module):
            if not has_debug_info(data):
                continue
            if load_elftools() is None:
                self.unreadable = True
                return []
            link = alternate_link(data)
            alternate = self._target.alternate_data(module, link) if link is not None else None
            try:
                found.append(open_dwarf(data, self._progress, alternate))
            except TargetError:
                continue
        return [file for file in found if file is not None]

    def record_failure(self, file: DebugFile, module: Module) -> None:
        """Record that a lookup in a file of this module failed. If the file refers to another file
        that is not supported, `warning` is set, once."""
        elsewhere = file.elsewhere or ("in .dwo files (-gsplit-dwarf)" if file.ask(file.split, False) else "")
        if elsewhere and not self.warning:
            name = module.path.rsplit("/", 1)[-1]
            self.warning = f"members of variables of {name} have no names: debug information {elsewhere} is not read"
