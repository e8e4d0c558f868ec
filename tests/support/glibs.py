"""Older releases of GLib that have GSlice: 2.66 from Debian 11, and 2.50 from the npm package libvips. The SHA-256 of each package is
checked. The packages are unpacked once; nothing is installed."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import debian
import nodes

PINS: debian.Pins = {
    ("libglib2.0-0", "2.66.8-1+deb11u4"): "7aff8c1338b58a6fa2b3a914724040a2b7f6e8dc2333f30c98834f7948f1884f",
    ("libffi7", "3.3-6"): "30ca89bfddae5fa6e0a2a044f22b6e50cd17c4bc6bc850c579819aeab7101f0f",
    ("libpcre3", "2:8.39-13"): "48efcf2348967c211cd9408539edf7ec3fa9d800b33041f6511ccaecc1ffa9d0",
}
PACKAGE, RELEASE = "libvips", "0.0.2"
SHA256 = "a640d6a6f0aa1649ad53936fcb4a1fdd1b9a3129f93fc50f2117756f9ea39754"
INNER = "package/dist/libvips-8.4.2-linux-x64.tar.gz"  # contains GLib 2.50.1

VERSIONS = ("2.50", "2.66")


def environment(version: str) -> Mapping[str, str]:
    """Return the environment in which a program loads this version of GLib. GLib is downloaded and unpacked on first use. Raises
    PackagesMissing or NodeMissing."""
    folder = debian.cache() / f"glib-{version}"
    libraries = _of_bullseye(folder) if version == "2.66" else _of_libvips(folder)
    return {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "PATH": "/usr/bin:/bin"}


def _of_bullseye(folder: Path) -> Sequence[Path]:
    debian.unpack_packages("bullseye", ["libglib2.0-0", "libpcre3", "libffi7"], folder, PINS)
    return [folder / "root" / place / "x86_64-linux-gnu" for place in ("usr/lib", "lib")]


def _of_libvips(folder: Path) -> Sequence[Path]:
    with debian.hold_lock(folder):
        root = folder / "root"
        if not root.exists():
            part = folder / "part"
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(nodes.pack(folder, RELEASE, SHA256, PACKAGE)) as package:
                inner = package.extractfile(INNER)
                assert inner is not None
                with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
                    archive.extractall(part, filter="data")
            part.rename(root)
    return [root / "lib"]
