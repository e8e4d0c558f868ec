"""C++ libraries of Debian for programs that are compiled with them: headers and static libraries, unpacked but not installed."""

from __future__ import annotations

from pathlib import Path

import debian

ABSEIL = {"20220623": "bookworm", "20240722": "trixie", "newest": "sid"}
"""The Debian suites with these releases of Abseil. sid changes."""
BOOST = {"1.74": "bookworm", "1.83": "trixie"}


def abseil(release: str) -> list[str]:
    """Return compiler options for Abseil. Raises debian.PackagesMissing."""
    root = _unpacked(ABSEIL[release], "libabsl-dev")
    libraries = sorted(str(one) for one in root.glob("usr/lib/*/libabsl_*.a"))
    return ["-isystem", str(root / "usr/include"), "-Wl,--start-group", *libraries, "-Wl,--end-group", "-pthread"]


def boost(release: str) -> list[str]:
    """Return compiler options for Boost with Boost.Context. Raises debian.PackagesMissing."""
    root = _unpacked(BOOST[release], f"libboost{release}-dev", f"libboost-context{release}-dev")
    library = next(root.glob("usr/lib/*/libboost_context.a"))
    return ["-DBOOST", "-isystem", str(root / "usr/include"), str(library), "-pthread"]


def boost_headers(release: str) -> str:
    """Return a compiler option for the headers of Boost. Raises debian.PackagesMissing."""
    options = boost(release)
    return "-isystem" + options[options.index("-isystem") + 1]


def _unpacked(suite: str, *packages: str) -> Path:
    folder = debian.cache() / "libraries" / f"{packages[0]}-{suite}"
    debian.unpack_packages(suite, packages, folder, {})
    return folder / "root"
