"""Which release of glibc this is: from its own banner where its bytes can be read, or the name of its file; else from the layouts found.

Layouts may be newer than the release that a file's name tells: distributions take changes over (RHEL 7's 2.17 has 2.23's malloc_state)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from findleaks.allocators.glibc.layout import SAFE_LINKING, Version, span, span_text
from findleaks.target.base import Region, Target
from findleaks.target.ranges import nonzero_pieces

BANNER = re.compile(rb"GNU C Library [^\n]{0,200}? release version (\d{1,3}\.\d{1,4})")
NAME = re.compile(r"libc-(\d{1,3}\.\d{1,4})(\.\d{1,4})?\.so")
MARK = b"GNU C Library "


def from_text(target: Target, home: Region | None) -> str:
    """The version named in the read-only bytes of the file that `home` (where main_arena lies) was mapped from, or ""."""
    if home is None or not home.name:
        return ""
    parts = [region for region in target.regions() if region.name == home.name and region.readable and not region.writable]
    for region in sorted(parts, key=lambda r: r.executable):
        for piece in nonzero_pieces(target, region.start, region.end):
            data = bytes(piece.data)
            at = data.find(MARK)
            while at >= 0:
                match = BANNER.match(data, at)
                if match:
                    return match.group(1).decode("ascii")
                at = data.find(MARK, at + 1)
    return ""


def from_name(home: Region | None) -> str:
    """The version in the name of the file, as glibc installed itself before 2.34: "2.17" of libc-2.17.so. "" where there is none."""
    match = NAME.fullmatch(where(home))
    return match.group(1) if match else ""


def from_layouts(rows: Iterable[tuple[Version, Version]], mangled: bool | None) -> str:
    """The releases that all layouts found belong to; `mangled` None: no list told whether links are."""
    found = list(rows)
    if mangled is not None:
        found.append((SAFE_LINKING, (2, 99)) if mangled else ((2, 0), (SAFE_LINKING[0], SAFE_LINKING[1] - 1)))
    return span_text(*span(found))


def where(home: Region | None) -> str:
    """The base name of the file main_arena lies in."""
    return os.path.basename(home.name) if home is not None and home.name else "unnamed memory"
