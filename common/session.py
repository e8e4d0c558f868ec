"""A target and what was computed of it. Dropped when the process runs on."""

from __future__ import annotations

from findleaks.target.base import Target


class Session:
    def __init__(self, target: Target) -> None:
        self.target = target
