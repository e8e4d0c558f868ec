"""Sources from crates of Rust's registry. Cargo downloads them into a separate folder; nothing is installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import debian


def source(folder: Path, name: str, version: str, digest: str) -> Path:
    """Return the unpacked crate of this version, whose archive has this SHA-256. It is downloaded into `folder` at the first use."""
    home = folder / "home"
    with debian.hold_lock(folder):
        found = list(home.glob(f"registry/src/*/{name}-{version}"))
        if not found:
            (folder / "src").mkdir(exist_ok=True)
            (folder / "src/lib.rs").write_text("")
            manifest = f'[package]\nname = "nothing"\nversion = "0.1.0"\n[dependencies]\n{name} = "={version}"\n[workspace]\n'
            (folder / "Cargo.toml").write_text(manifest)
            subprocess.run(["cargo", "fetch", "-q"], cwd=folder, env={**os.environ, "CARGO_HOME": str(home)}, check=True)
            found = list(home.glob(f"registry/src/*/{name}-{version}"))
        (archive,) = home.glob(f"registry/cache/*/{name}-{version}.crate")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
            raise debian.PackagesMissing(f"{archive} is not the file it should be: delete {folder} and try again")
    return found[0]
