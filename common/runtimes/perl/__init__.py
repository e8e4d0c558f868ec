"""Read Perl (5.36 to 5.40): values by type and class, closures by file and line, variables by
name, and cycles.

Its values are blocks in Perl's arenas (allocators/perl)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find Perl's interpreters; see base.Finder."""
    from findleaks.allocators.perl.instance import PerlArenas
    from findleaks.runtimes.perl.instance import Perl

    return [Perl(target, engine, directory, one) for one in directory.allocators if isinstance(one, PerlArenas)]
