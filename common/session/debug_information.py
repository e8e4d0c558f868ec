"""The part of a session that reads debug information. Few commands need these modules, so they are
imported where they are used."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from findleaks.debuginfo.files import DebugFiles
    from findleaks.debuginfo.members import Members
    from findleaks.debuginfo.sources import Sources
    from findleaks.debuginfo.type_index import TypeIndex
    from findleaks.engine.contract import Engine
    from findleaks.target.base import Target

Result = TypeVar("Result")


class DebugInformation:
    """The data that a session reads from debug information when it is first used."""

    target: Target
    engine: Engine

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result of `compute`, which is cached under `key`."""
        raise NotImplementedError

    def report_progress(self, phase: str, part: float) -> None:
        """Report progress. Raises Interrupted if the user asked to stop."""
        raise NotImplementedError

    @property
    def debug_files(self) -> DebugFiles:
        """Files with debug information."""
        from findleaks.debuginfo.files import DebugFiles

        return self.once("debug_files", lambda: DebugFiles(self.target, self.report_progress))

    @property
    def sources(self) -> Sources:
        """The source of code: files, lines and inlined functions."""
        from findleaks.debuginfo.sources import Sources

        return self.once("sources", lambda: Sources(self.target, lambda: self.debug_files, self.report_progress))

    @property
    def members(self) -> Members:
        """Types of variables, and names of their members."""
        from findleaks.debuginfo.members import Members

        return self.once("members", lambda: Members(self.target, self.debug_files))

    @property
    def type_index(self) -> TypeIndex:
        """All types, variables and functions of the modules."""
        from findleaks.debuginfo.type_index import TypeIndex

        return self.once("type_index", lambda: TypeIndex(self.target, self.engine, self.sources, self.report_progress))
