"""Get several versions of mimalloc from three sources. Debian's packages contain a shared library. Wheels contain a shared library, and an
object to link. Rust's crates contain the source.

The source of a crate is compiled here, as a library to preload or as an object to link statically, in release, secure and debug builds.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import crates
import debian
import truth

SUITES = {
    "2.0.9": ("bookworm", "libmimalloc2.0", "libmimalloc.so.2"),
    "3.0.1": ("trixie", "libmimalloc3", "libmimalloc.so.3"),
    "3.6.0": ("sid", "libmimalloc3", "libmimalloc.so.3"),
}
"""The Debian suite of each mimalloc. sid changes: `library` then warns, and tests run with sid's current version."""

PINNED: debian.Pins = {
    ("libmimalloc2.0", "2.0.9+ds-2"): "a20035605a532be3186f0f48607c7106fe2a5551066c29de663c965692c446c4",
    ("libmimalloc3", "3.0.1+ds-2.1"): "053687d089388e73e0a34035e1248a098cb000c5c25891f7c15d8445843ed049",
    ("libmimalloc3", "3.6.0+ds-1"): "8db3407271e91720fea5439e025ea9c8a6cef885437af82a8f3e2ce339fc465b",
}

WHEELS = {
    "3.2.8": "9ffd5639af13b64669e9933b81fac1d761154967202a666a17f5776a6a2d9252",
    "3.4.3": "627d9e379503fd8a1001bed618f7434477c221f017cf31d4caca65d464731ff0",
}
"""SHA-256 of the wheels cmeel-mimalloc, which contain a shared library and an object that overrides malloc."""

CRATES = {
    "2.0.9-source": ("0.1.30", "c_src/mimalloc", "dd8c7cbf8b89019683667e347572e6d55a7df7ea36b0c4ce69961b0cde67b174"),
    "2.1.7": ("0.1.39", "c_src/mimalloc", "23aa6811d3bd4deb8a84dde645f943476d13b248d818edcf8ce0b2f37f036b44"),
    "2.2.3": ("0.1.40", "c_src/mimalloc", "07d0e07885d6a754b9c7993f2625187ad694ee985d60f23355ff0e7077261502"),
    "2.2.5": ("0.1.43", "c_src/mimalloc", "bf88cd67e9de251c1781dbe2f641a1a3ad66eaae831b8a2c38fbdc5ddae16d4d"),
    "2.3.2": ("0.1.49", "c_src/mimalloc/v2", "6a45a52f43e1c16f667ccfe4dd8c85b7f7c204fd5e3bf46c5b0db9a5c3c0b8e9"),
    "3.1.5": ("0.1.44", "c_src/mimalloc/v3", "667f4fec20f29dfc6bc7357c582d91796c169ad7e2fce709468aefeb2c099870"),
    "3.3.2": ("0.1.49", "c_src/mimalloc/v3", "6a45a52f43e1c16f667ccfe4dd8c85b7f7c204fd5e3bf46c5b0db9a5c3c0b8e9"),
}
"""By mimalloc's version: the crate libmimalloc-sys that contains it, the folder in the crate, and the crate's SHA-256."""

BUILDS: Mapping[str, Sequence[str]] = {
    "release": ("-DNDEBUG",),
    "secure": ("-DNDEBUG", "-DMI_SECURE=4"),
    "debug": ("-DMI_DEBUG=1",),
}


def _folder() -> Path:
    return debian.cache() / "mimalloc"


@functools.cache
def library(version: str, build: str = "release") -> Path:
    """Return a library to preload. Raises debian.PackagesMissing, or CalledProcessError if the client of a registry or the compiler
    fails."""
    if version in SUITES:
        suite, package, name = SUITES[version]
        folder = _folder() / suite
        found = debian.version_of(package, debian.unpack_packages(suite, (package,), folder, PINNED))
        if not found.startswith(version):
            warnings.warn(f"Debian {suite} has mimalloc {found} now, no longer {version}: tested is what it has", stacklevel=2)
        return (folder / "root/usr/lib/x86_64-linux-gnu" / name).resolve()
    if version in WHEELS:
        return (_wheel(version) / "cmeel.prefix/lib/libmimalloc.so").resolve()
    return _compiled(
        version, build, "library.so", ("-shared", "-fPIC", "-ftls-model=initial-exec", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT")
    )


@functools.cache
def get_object(version: str, build: str = "release", override: bool = True) -> Path:
    """Return an object to link into a program. With `override` it defines malloc and free, otherwise only mi_malloc and similar
    functions."""
    if version in WHEELS and override:
        return next((_wheel(version) / "cmeel.prefix/lib").glob("mimalloc-*/mimalloc.o"))
    return _compiled(version, build, f"object-{override}.o", ("-c",), override)


@functools.cache
def headers(version: str) -> Path:
    """Return the folder of mimalloc.h, for a version that is available as source."""
    return _source(version) / "include"


def _wheel(version: str) -> Path:
    folder = _folder() / f"wheel-{version}"
    with debian.hold_lock(folder):
        if not (folder / "root").exists():
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                str(folder),
                f"cmeel-mimalloc=={version}",
            ]
            subprocess.run(command, check=True)
            (wheel,) = folder.glob("*.whl")
            _check(wheel, WHEELS[version])
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder / "part")
            (folder / "part").rename(folder / "root")
    return folder / "root"


def _source(version: str) -> Path:
    """Return mimalloc's folder in its crate."""
    crate, inside, digest = CRATES[version]
    return crates.source(_folder() / f"crate-{crate}", "libmimalloc-sys", crate, digest) / inside


def _compiled(version: str, build: str, name: str, flags: Iterable[str], override: bool = True) -> Path:
    source = _source(version)
    output = _folder() / f"{version}-{build}-{name}"
    with debian.hold_lock(_folder() / f"build-{version}"):
        if not output.exists():
            part = output.with_suffix(".part" + output.suffix)
            options = [*flags, *BUILDS[build], *(("-DMI_MALLOC_OVERRIDE",) if override else ())]
            command = ["gcc", "-w", "-O1", "-g0", *options, f"-I{source / 'include'}", "-o", str(part), str(source / "src/static.c")]
            subprocess.run([*command, "-pthread"] if "-c" not in options else command, check=True)
            part.rename(output)
    return output


def _check(file: Path, digest: str) -> None:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != digest:
        raise debian.PackagesMissing(f"{file} has SHA-256 {found}, not {digest}: delete it and try again")


def settle(records: Sequence[truth.Record], blocks: Iterable[Mapping[str, Any]]) -> list[truth.Record]:
    """Return the program's list with the addresses that findleaks reports for aligned blocks whose start nothing refers to.

    mimalloc does not record by how much it moved the pointer of an aligned block. findleaks infers this from references to the block. A
    leaked or possibly lost block may have no reference to its start; then findleaks reports a start before the true one. The difference
    must be less than the alignment that the program requested, and the end must be the true one.
    """
    starts = {int(block["address"], 16): int(block["size"]) for block in blocks if block["state"] == "in-use"}
    ends = {start + size: start for start, size in starts.items()}
    moved = {}
    for record in records:
        start = ends.get(record.end)
        if (
            record.state == "in-use"
            and record.kind != "reachable"
            and record.address not in starts
            and start is not None
            and 0 <= record.address - start < record.alignment
        ):
            moved[record.address] = start
    settled = []
    for record in records:
        if record.state == "in-use":
            address, end = moved.get(record.address, record.address), record.end
            record = replace(record, address=address, usable=end - address, leader=moved.get(record.leader, record.leader))
        settled.append(record)
    return settled
