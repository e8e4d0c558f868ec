"""Parser of /proc/PID/maps."""

from __future__ import annotations

from typing import Optional

from findleaks.target.base import Region, anonymous_name


def regions_of(maps: bytes) -> list[Region]:
    """Parse the regions of /proc/PID/maps. In file names the kernel escapes only line feeds
    (seq_file_path in fs/proc/task_mmu.c). A carriage return is not escaped, and does not end a
    line."""
    return [region for region in map(_region_of, maps.split(b"\n")) if region is not None]


def _region_of(line: bytes) -> Optional[Region]:
    """Parse a line "start-end perms offset dev inode   path". Return None if the line has another
    form."""
    fields = line.split(None, 5)
    try:
        low, high = fields[0].split(b"-")
        mode, offset = fields[1], int(fields[2], 16)
        start, end = int(low, 16), int(high, 16)
    except (IndexError, ValueError):
        return None
    name = fields[5].decode("utf-8", "surrogateescape").replace("\\012", "\n") if len(fields) > 5 else ""
    is_private = mode[3:4] == b"p"
    name = anonymous_name(name) if is_private else name
    return Region(start, end, mode[:1] == b"r", mode[1:2] == b"w", mode[2:3] == b"x", name, offset, is_private)
