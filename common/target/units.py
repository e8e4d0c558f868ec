"""Sizes and lists for people."""

from __future__ import annotations

from collections.abc import Sequence


def human(size: int) -> str:
    """ "268 MiB", "1.2 GiB", "17 B": two digits below ten, whole numbers above."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            return f"{value:.1f} {unit}" if value < 9.95 and unit != "B" else f"{value:.0f} {unit}"
        value /= 1024
    return ""


def some(names: Sequence[str], most: int = 3) -> str:
    """ "a, b, c and 7 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
