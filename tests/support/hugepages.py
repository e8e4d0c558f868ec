"""Huge pages for tests that run alone, as root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reserve(number: int) -> Iterator[None]:
    """Add this number of huge pages to those that the kernel reserves, and return them at the end."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    before = setting.read_text()
    setting.write_text(str(int(before) + number))
    try:
        yield
    finally:
        setting.write_text(before)
