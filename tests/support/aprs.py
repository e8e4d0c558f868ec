"""A build of APR that Debian does not have."""

from __future__ import annotations

from pathlib import Path

import debian

SOURCE = "75e77cc86776c030c0a5c408dfbd0bf2a0b75eed5351e52d5439fa1e5509a43e"
"""SHA-256 of apr_1.7.2.orig.tar.bz2."""


def without_mmap() -> Path:
    """Return the folder of a libapr 1.7.2 that allocates nodes with malloc, as APR does by default. Debian's libapr uses mmap instead.
    libapr is built once, which takes half a minute of CPU time."""
    commands = ("sh", "configure", "--quiet"), ("make", "--silent")
    return debian.build_source("bookworm", "apr", debian.cache() / "apr-malloc", SOURCE, commands) / ".libs"
