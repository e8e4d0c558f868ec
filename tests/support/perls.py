"""Builds of Perl that Debian does not have."""

from __future__ import annotations

from pathlib import Path

import debian

SOURCE = "0f386dccbee8e26286404b2cca144e1005be65477979beb9b1ba272d4819bcf0"
"""SHA-256 of perl_5.36.0.orig.tar.xz."""


def without_threads() -> Path:
    """Return the folder of Perl 5.36 without threads: the program `perl`, stripped, and its modules in `lib`. It is built once, which takes
    minutes."""
    configure = ("sh", "Configure", "-des", "-Uusethreads", "-Doptimize=-O1", "-Dman1dir=none", "-Dman3dir=none")
    commands = configure, ("make", "perl"), ("make", "lib/auto/List/Util/Util.so"), ("strip", "perl")
    return debian.build_source("bookworm", "perl", debian.cache() / "perl-unthreaded", SOURCE, commands)
