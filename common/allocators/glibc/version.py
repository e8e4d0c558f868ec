"""Determine the release of glibc from its banner, its file name, or the layouts found.

Layouts may be newer than the release that the name states, because distributions backport changes
(RHEL 7: malloc_state of 2.23 in 2.17)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from findleaks.allocators.glibc.layout import NEWEST, SAFE_LINKING, GlibcLayout
from findleaks.target.base import Region, Target
from findleaks.target.ranges import nonzero_pieces

BANNER = re.compile(rb"GNU C Library [^\n]{0,200}? release version (\d{1,3}\.\d{1,4})")
NAME = re.compile(r"libc-(\d{1,3}\.\d{1,4})(\.\d{1,4})?\.so")
MARK = b"GNU C Library "


def read_banner(target: Target, home: Region | None) -> str:
    """Return the version in libc's banner, or "". The banner is in read-only bytes of the file from
    which `home`, the region of main_arena, was mapped."""
    if home is None or not home.name:
        return ""
    parts = [region for region in target.regions() if region.name == home.name and region.readable and not region.writable]
    for region in sorted(parts, key=lambda r: r.executable):
        for piece in nonzero_pieces(target, region.start, region.end):
            data = bytes(piece.data)
            at = data.find(MARK)
            match = BANNER.search(data, at) if at >= 0 else None
            if match:
                return match.group(1).decode("ascii")
    return ""


def parse_name(home: Region | None) -> str:
    """Return the version in the file name, which releases before 2.34 have ("2.17" for
    libc-2.17.so), or ""."""
    match = NAME.fullmatch(get_file_name(home))
    return match.group(1) if match else ""


def derive_from_layouts(layouts: Iterable[GlibcLayout], mangled: bool | None) -> str:
    """Return the releases that all layouts found have in common, such as "2.35-2.41" or "2.43 or
    newer". "unknown" if there are none. `mangled` is None if no list showed whether links are
    mangled."""
    rows = [(layout.since, layout.until) for layout in layouts]
    if mangled is not None:
        rows.append((SAFE_LINKING, NEWEST) if mangled else ((2, 0), (SAFE_LINKING[0], SAFE_LINKING[1] - 1)))
    since, until = max(since for since, _ in rows), min(until for _, until in rows)
    if since > until:
        return "unknown"
    first, last = f"{since[0]}.{since[1]}", f"{until[0]}.{until[1]}"
    if until >= NEWEST:
        return f"{first} or newer"
    return first if first == last else f"{first}-{last}"


def get_file_name(home: Region | None) -> str:
    """Return the base name of the file that contains main_arena."""
    return os.path.basename(home.name) if home is not None and home.name else "unnamed memory"
