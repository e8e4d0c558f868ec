"""Debian's jemalloc of several releases, unpacked outside the system: libraries to preload, and archives to link statically."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

import debian

SUITES = {"5.2.1": "bullseye", "5.3.0": "bookworm", "5.3.0-trixie": "trixie", "5.3.1": "sid"}
"""The Debian suite of each jemalloc. sid changes: `get` then warns, and tests run with sid's current version."""

LIBCS = {"5.3.0-trixie": "2.41", "5.3.1": "2.43"}
"""The libc (of libcs.py) for a release that needs a newer one than the host's."""

PACKAGES = ("libjemalloc2", "libjemalloc-dev")

PINNED: debian.Pins = {
    ("libjemalloc2", "5.2.1-3"): "dcb79555b137ad70c9d392ca31e04533e3a10b63aa0db02d5a26f464060cc0f5",
    ("libjemalloc-dev", "5.2.1-3"): "1fc140aa8ba5de75daa50e5883c4dc1d2e5fb2a07775a06600dce63550bd61fe",
    ("libjemalloc2", "5.3.0-1"): "a4117c23c5c8acf6c9678a6cb086f000b79476369da7efe8a78a70826956ad3d",
    ("libjemalloc-dev", "5.3.0-1"): "1a883483ac9cb9adb62e1359438fa49a84bfe0b526fb62c64285031530672665",
    ("libjemalloc2", "5.3.0-3"): "e7d64919e620e8ea46960104efe1e9c977d751e5b610a5d89b0b51aeae9530d7",
    ("libjemalloc-dev", "5.3.0-3"): "4f7f932b8c47904ddae51275d0ff50d45313ad14d4a3bafb431ae7c07d49524c",
    ("libjemalloc2", "5.3.1-2"): "115b797f5a25d70cbe81373c9f1cce78536ed2a8a6d9dd5a061682a2340a25df",
    ("libjemalloc-dev", "5.3.1-2"): "d9df9adbddc93a3d474208d87ff4b69b8749c91f9b26aed9bb735e19281f51ba",
}


@dataclass(frozen=True)
class Release:
    """An unpacked jemalloc. `archive` is libjemalloc_pic.a, and `static` has the flags to link it with its dependencies."""

    version: str
    library: Path
    archive: Path

    @property
    def static(self) -> tuple[str, ...]:
        return ("-Wl,--whole-archive", str(self.archive), "-Wl,--no-whole-archive", "-lstdc++", "-lm", "-ldl", "-pthread")


@functools.cache
def get(version: str) -> Release:
    """Return the release, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    suite = SUITES[version]
    folder = debian.cache() / "jemalloc" / suite
    package = debian.version_of("libjemalloc2", debian.unpack_packages(suite, PACKAGES, folder, PINNED))
    release = package.split("-")[0]
    if release != version.split("-")[0]:
        warnings.warn(f"Debian {suite} has jemalloc {package} now, no longer {version}: tested is what it has", stacklevel=2)
    where = folder / "root/usr/lib/x86_64-linux-gnu"
    return Release(release, (where / "libjemalloc.so.2").resolve(), where / "libjemalloc_pic.a")
