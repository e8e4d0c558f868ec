"""Files of Maven Central, downloaded with the client `mvn`, and cached with the packages of other Debian releases."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import debian


def jar(artifact: str, digest: str, folder: Path) -> Path:
    """Download an artifact (group:name:version, or group:name:version:jar:classifier) into `folder`, and return its file. Its SHA-256 must
    be `digest`. Raises debian.PackagesMissing."""
    _, name, version, *rest = artifact.split(":")
    with debian.hold_lock(folder):
        made = folder / ("-".join((name, version, *rest[1:])) + ".jar")
        if not made.exists():
            for goal in (
                ("dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"),
                ("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"),
            ):
                command = ["mvn", "--batch-mode", "--quiet", *goal]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if done.returncode:
                    raise debian.PackagesMissing(f"Maven: {artifact} cannot be had:\n{done.stdout}")
        found = hashlib.sha256(made.read_bytes()).hexdigest()
        if found != digest:
            raise debian.PackagesMissing(f"{made} has SHA-256 {found}, not {digest}: delete it and try again")
    return made


def unpack_artifact(artifact: str, digest: str, folder: Path) -> Path:
    """Unpack the artifact into `folder`/root."""
    made = jar(artifact, digest, folder)
    root = folder / "root"
    with debian.hold_lock(folder):
        if not (folder / "unpacked").exists():
            shutil.rmtree(root, ignore_errors=True)
            shutil.unpack_archive(made, root, "zip")
            (folder / "unpacked").touch()
    return root
