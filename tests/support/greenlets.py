"""Greenlets of several Debian releases, for the interpreters that other_pythons.py returns."""

from __future__ import annotations

from pathlib import Path

import debian

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
PINNED: debian.Pins = {
    ("python3-greenlet", "0.4.17-1+b1"): "2158fb5815f6cd72704f1a55b84267fa7a90c23cefa7aa72455bfa4871e084df",
    ("python3-greenlet", "2.0.2-1"): "c29818bb6d3c2f3a181d68646db88e6aba670325dfb90f1afc1721db5a1cd4c3",
    ("python3-greenlet", "3.1.0-1+b2"): "1c48c16c979f66c447fc699c998d465ad7dcf5e93c5942d3444089170a45e743",
    ("libstdc++6", "14.2.0-19"): "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0",
}


def get_environment(version: str) -> tuple[Path, dict[str, str]]:
    """Return the folder with the module `greenlet` for a version of Python, downloaded and unpacked at the first use, and variables that
    it needs. Raises debian.PackagesMissing."""
    suite = SUITES[version]
    folder = debian.cache() / "pythons" / f"greenlet-{suite}"
    packages = ("python3-greenlet", "libstdc++6") if suite == "trixie" else ("python3-greenlet",)
    debian.unpack_packages(suite, packages, folder, PINNED)
    # The library of trixie is newer than that of the system.
    library = next(folder.glob("root/usr/lib/*/libstdc++.so.6"), None)
    return folder / "root/usr/lib/python3/dist-packages", {"LD_PRELOAD": str(library)} if library is not None else {}
