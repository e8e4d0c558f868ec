"""SQLite with lookaside buffers, which Debian's build does not have, compiled from the source in the crate libsqlite3-sys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import building
import crates
import debian

CRATE = ("libsqlite3-sys", "0.30.1", "2e99fb7a497b1e3339bc746195567ed8d3e24945ecd636e3619d20b9de9e9149")
"""SQLite 3.46.0."""


def program(folder: Path) -> Path:
    """Compile SQLite as a shared library, and the program sqlite_lookaside.c, into a folder."""
    library, source = folder / "libsqlite3.so.0", crates.source(debian.cache() / "sqlite", *CRATE) / "sqlite3"
    options = ["-O0", "-shared", "-fPIC", "-Wl,-soname,libsqlite3.so.0"]
    subprocess.run(["gcc", *options, source / "sqlite3.c", "-o", library], check=True)
    return building.compile_program(folder, "sqlite_lookaside.c", "-O1", f"-I{source}", f"-Wl,-rpath,{folder}", str(library))
